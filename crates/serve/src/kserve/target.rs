//! What a path below `/v2/models/` leads to. A model's name may have slashes itself, so that a path is read from its end.

/// What is asked of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Its description.
    Metadata,
    /// Whether it answers.
    Ready,
    /// What it has done.
    Stats,
    /// An answer.
    Infer,
}

/// A model and what is asked of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target<'a> {
    /// The model's name.
    pub model: &'a str,
    /// The version that is asked for.
    pub version: Option<&'a str>,
    /// What is asked.
    pub action: Action,
}

impl<'a> Target<'a> {
    /// What `path` leads to, which follows `/v2/models/`.
    pub fn read(path: &'a str) -> Self {
        let (head, action) = match path.rsplit_once('/') {
            Some((head, "ready")) => (head, Action::Ready),
            Some((head, "stats")) => (head, Action::Stats),
            Some((head, "infer")) => (head, Action::Infer),
            _ => (path, Action::Metadata),
        };
        match head.rsplit_once("/versions/") {
            Some((model, version)) if !version.contains('/') => Self { model, version: Some(version), action },
            _ => Self { model: head, version: None, action },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_read_from_its_end() {
        let target = |model, version, action| Target { model, version, action };
        for (path, expected) in [
            ("a", target("a", None, Action::Metadata)),
            ("a/versions/1", target("a", Some("1"), Action::Metadata)),
            ("a/infer", target("a", None, Action::Infer)),
            ("org/a:b/versions/2/infer", target("org/a:b", Some("2"), Action::Infer)),
            ("a/versions/1/ready", target("a", Some("1"), Action::Ready)),
            ("org/a/stats", target("org/a", None, Action::Stats)),
            ("a/versions/b/c", target("a/versions/b/c", None, Action::Metadata)),
        ] {
            assert_eq!(Target::read(path), expected, "{path}");
        }
    }
}
