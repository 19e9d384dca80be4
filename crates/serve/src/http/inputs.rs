//! The four forms in which OpenAI's routes take texts: a string, strings, ids, and arrays of ids.

use serde_json::Value;

use super::fault::Fault;

/// One text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    /// The text itself.
    Text(String),
    /// The ids of its tokens.
    Ids(Vec<u32>),
}

/// The texts of the field `param`, of which there may be `most`.
///
/// # Errors
/// Another form; none; more than `most`.
pub fn inputs(param: &str, value: Value, most: usize) -> Result<Vec<Input>, Fault> {
    let expected = |found: &str| Fault::expected(param, "a string, an array of strings, an array of ids, or an array of arrays of ids", found);
    let list = match value {
        Value::String(text) => return Ok(vec![Input::Text(text)]),
        Value::Array(list) => list,
        _ => return Err(expected("another value")),
    };
    let inputs: Option<Vec<Input>> = match list.first() {
        None => return Err(expected("an empty array")),
        Some(Value::Number(_)) => return ids(&list).map(|ids| vec![Input::Ids(ids)]).ok_or_else(|| expected("an array of ids with something else in it")),
        Some(_) if list.len() > most => return Err(Fault::expected(param, &format!("at most {most} texts"), list.len())),
        Some(Value::String(_)) => list.into_iter().map(|value| if let Value::String(text) = value { Some(Input::Text(text)) } else { None }).collect(),
        Some(Value::Array(_)) => list.iter().map(|value| value.as_array().and_then(|list| ids(list)).map(Input::Ids)).collect(),
        Some(_) => None,
    };
    inputs.ok_or_else(|| expected("an array with something else in it"))
}

fn ids(list: &[Value]) -> Option<Vec<u32>> {
    list.iter().map(|id| id.as_u64().and_then(|id| u32::try_from(id).ok())).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn every_form_is_read_and_a_mixed_one_is_refused() {
        let read = |value: Value| inputs("input", value, 3);
        let text = |text: &str| Input::Text(text.into());
        assert_eq!(read(json!("a")).unwrap(), [text("a")]);
        assert_eq!(read(json!(["a", ""])).unwrap(), [text("a"), text("")]);
        assert_eq!(read(json!([1, 2, 3, 4])).unwrap(), [Input::Ids(vec![1, 2, 3, 4])]);
        assert_eq!(read(json!([[1], []])).unwrap(), [Input::Ids(vec![1]), Input::Ids(vec![])]);
        for bad in [
            json!([]),
            json!(1),
            json!({}),
            json!(["a", 1]),
            json!([1, "a"]),
            json!([[1], "a"]),
            json!([-1]),
            json!([1.5]),
            json!([4294967296u64]),
            json!([null]),
        ] {
            assert!(read(bad.clone()).is_err(), "{bad}");
        }
        assert!(read(json!(["a", "a", "a", "a"])).is_err());
    }
}
