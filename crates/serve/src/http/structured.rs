//! The form that an answer is to have: `response_format` as OpenAI has it, and `structured_outputs` as vLLM does.

use serde_json::Value;
use trifuse::llm::Structure;

use super::fault::Fault;
use super::fields::Fields;

/// Reads the form of the answer, from either field, whose name goes with it.
///
/// # Errors
/// A field that is not sound; both; more than one form.
pub fn structure(fields: &mut Fields) -> Result<Option<(&'static str, Structure)>, Fault> {
    let format = fields.take("response_format").map(response_format).transpose()?.flatten();
    let outputs = fields.take("structured_outputs").map(structured_outputs).transpose()?;
    match (format, outputs) {
        (Some(_), Some(_)) => Err(Fault::expected("structured_outputs", "nothing, as response_format is set", "a value")),
        (Some(format), None) => Ok(Some(("response_format", format))),
        (None, outputs) => Ok(outputs.map(|outputs| ("structured_outputs", outputs))),
    }
}

fn response_format(value: Value) -> Result<Option<Structure>, Fault> {
    let mut fields = Fields::within("response_format", value)?;
    let kind = fields.string("type")?;
    let structure = match kind.as_deref() {
        Some("text") => None,
        Some("json_object") => Some(Structure::JsonObject),
        Some("json_schema") => {
            let mut inner = Fields::within("response_format.json_schema", fields.needed("json_schema", "an object with a schema")?)?;
            let schema = inner.needed("schema", "a JSON Schema")?;
            // Answers are held to the schema, whether that is asked for strictly or not.
            ["name", "description", "strict"].iter().for_each(|name| inner.ignore(name));
            inner.end()?;
            Some(Structure::JsonSchema(schema))
        }
        other => return Err(Fault::expected("response_format.type", "text, json_object or json_schema", format!("{other:?}"))),
    };
    fields.end()?;
    Ok(structure)
}

fn structured_outputs(value: Value) -> Result<Structure, Fault> {
    let mut fields = Fields::within("structured_outputs", value)?;
    let choice = |value: Value| {
        let texts = value.as_array().and_then(|list| list.iter().map(|text| text.as_str().map(str::to_owned)).collect::<Option<Vec<String>>>());
        texts.map(Structure::Choice).ok_or_else(|| Fault::expected("structured_outputs.choice", "an array of strings", "another value"))
    };
    let json = fields.take("json").map(|value| match value {
        // A schema may be written as a text.
        Value::String(text) => serde_json::from_str(&text).map_err(|error| Fault::expected("structured_outputs.json", "a JSON Schema", error)),
        schema => Ok(schema),
    });
    let found = [
        json.transpose()?.map(Structure::JsonSchema),
        if fields.flag("json_object")? { Some(Structure::JsonObject) } else { None },
        fields.string("regex")?.map(Structure::Regex),
        fields.take("choice").map(choice).transpose()?,
        fields.string("grammar")?.map(Structure::Lark),
    ];
    fields.end()?;
    let mut found = found.into_iter().flatten();
    match (found.next(), found.next()) {
        (Some(one), None) => Ok(one),
        _ => Err(Fault::expected("structured_outputs", "one of json, json_object, regex, choice and grammar", "another number of them")),
    }
}
