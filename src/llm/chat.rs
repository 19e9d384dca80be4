//! The text of a chat, by the template that a model comes with.

use std::path::{Path, PathBuf};

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Serde, Value};
use minijinja::{Environment, ErrorKind, context};
use serde::Serialize;

use crate::error::{Error, Result};

/// One turn of a chat.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Message {
    /// Who speaks: `system`, `user` or `assistant`.
    pub role: String,
    /// What is said.
    pub content: String,
}

impl Message {
    /// A turn of `role`.
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Self {
        Self { role: role.into(), content: content.into() }
    }
}

/// A model's template, which makes one text of a chat.
pub struct ChatTemplate {
    environment: Environment<'static>,
    /// The file that it is from.
    path: PathBuf,
    /// The texts of the first and of the last token.
    marks: [Option<String>; 2],
}

const NAME: &str = "chat";
/// The most steps that a template may take: it is a program from outside. Those of real ones take some hundred a turn.
const STEPS: u64 = 10_000_000;

impl ChatTemplate {
    /// A template in Jinja, as the Hugging Face libraries read it.
    ///
    /// # Errors
    /// A template that is not sound.
    pub fn new(path: &Path, template: &str, marks: [Option<String>; 2]) -> Result<Self> {
        let fault = |error: minijinja::Error| Error::input_item(path, "chat_template", format!("expected a template, found: {error:#}"));
        let mut environment = Environment::new();
        environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.set_syntax(SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build().map_err(fault)?);
        environment.set_fuel(Some(STEPS));
        let refuse = |message: String| -> Result<String, minijinja::Error> { Err(minijinja::Error::new(ErrorKind::InvalidOperation, message)) };
        environment.add_function("raise_exception", refuse);
        environment.add_template_owned(NAME, template.to_owned()).map_err(fault)?;
        Ok(Self { environment, path: path.into(), marks })
    }

    /// The file that it is from.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The text of a chat. With `answer` the start of the assistant's next turn follows.
    ///
    /// # Errors
    /// What the template refuses, as two turns of the user in a row.
    pub fn render(&self, messages: &[Message], answer: bool) -> Result<String> {
        self.render_for(None, messages, answer)
    }

    /// The text of a chat by an adapter's template, with the first and the last token of its model's where its own folder names none.
    ///
    /// # Errors
    /// Those of [`render`](Self::render).
    pub fn render_for(&self, model: Option<&Self>, messages: &[Message], answer: bool) -> Result<String> {
        let fault = |error: minijinja::Error| Error::input_item(&self.path, "chat_template", format!("it refuses this chat: {error:#}"));
        let mark = |at: usize| self.marks[at].as_ref().or_else(|| model?.marks[at].as_ref()).map_or("", String::as_str);
        let [first, last] = [mark(0), mark(1)];
        let values = context! { messages => Value::from(Serde(messages)), add_generation_prompt => answer, bos_token => first, eos_token => last };
        self.environment.get_template(NAME).map_err(fault)?.render(values).map_err(fault)
    }
}

impl std::fmt::Debug for ChatTemplate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "chat template from {}", self.path.display())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn template(text: &str) -> Result<ChatTemplate> {
        ChatTemplate::new(Path::new("tokenizer_config.json"), text, [Some("<s>".into()), None])
    }

    #[test]
    fn a_template_reads_like_python() {
        let text = "{{ bos_token }}{% for message in messages %}
{% if message['role'].startswith('sys') %}[{{ message['content'].strip() | upper }}]
{% else %}{{ message.role }}:{{ message.content.split(',')[0] }}
{% endif %}{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}";
        let chat = [Message::new("system", " be brief "), Message::new("user", "a, b")];
        assert_eq!(template(text).unwrap().render(&chat, true).unwrap(), "<s>[BE BRIEF]\nuser:a\nassistant:");
        assert_eq!(template(text).unwrap().render(&chat[1..], false).unwrap(), "<s>user:a\n");
    }

    #[test]
    fn an_adapters_template_takes_the_marks_that_its_folder_does_not_name_from_the_model() {
        let chat = [Message::new("user", "a, b")];
        let own = ChatTemplate::new(Path::new("adapter"), "{{ bos_token }}{{ messages[0].content }}{{ eos_token }}", [None, Some("</a>".into())]).unwrap();
        assert_eq!(own.render_for(Some(&template("").unwrap()), &chat, true).unwrap(), "<s>a, b</a>");
        assert_eq!(own.render(&chat, true).unwrap(), "a, b</a>");
    }

    #[test]
    fn what_a_template_refuses_is_told() {
        assert!(template("{% if %}").unwrap_err().to_string().contains("chat_template"));
        let error = template("{{ raise_exception('turns must alternate') }}").unwrap().render(&[], true).unwrap_err();
        assert!(matches!(&error, Error::Input { .. }) && error.to_string().contains("turns must alternate"), "{error}");
        let endless = template("{% for i in range(9999) %}{% for j in range(9999) %}{{ i * j }}{% endfor %}{% endfor %}").unwrap();
        assert!(endless.render(&[], true).is_err());
    }
}
