//! Values as JSON.

use std::fmt::{self, Display, Formatter, Write};

/// A value. What is not UTF-8 in text was replaced by U+FFFD.
#[derive(Clone, Debug, PartialEq)]
pub enum Json {
    Null,
    Bool(bool),
    Number(i64),
    Text(String),
    List(Vec<Json>),
    Object(Vec<(&'static str, Json)>),
}

impl Json {
    /// From bytes that should be text.
    pub fn lossy(bytes: &[u8]) -> Self {
        Self::Text(String::from_utf8_lossy(bytes).into_owned())
    }

    /// From items, each by itself.
    pub fn list<T>(items: impl IntoIterator<Item = T>, to_json: impl FnMut(T) -> Self) -> Self {
        Self::List(items.into_iter().map(to_json).collect())
    }
}

impl From<bool> for Json {
    fn from(value: bool) -> Self {
        Self::Bool(value)
    }
}

impl From<i64> for Json {
    fn from(value: i64) -> Self {
        Self::Number(value)
    }
}

impl From<i32> for Json {
    fn from(value: i32) -> Self {
        Self::Number(value.into())
    }
}

/// Beyond what a signed number holds, which nothing here comes to, it is the largest of those.
impl From<u64> for Json {
    fn from(value: u64) -> Self {
        Self::Number(i64::try_from(value).unwrap_or(i64::MAX))
    }
}

impl From<usize> for Json {
    fn from(value: usize) -> Self {
        Self::from(value as u64)
    }
}

impl From<&str> for Json {
    fn from(value: &str) -> Self {
        Self::Text(value.to_owned())
    }
}

impl From<String> for Json {
    fn from(value: String) -> Self {
        Self::Text(value)
    }
}

impl<T: Into<Json>> From<Option<T>> for Json {
    fn from(value: Option<T>) -> Self {
        value.map_or(Self::Null, Into::into)
    }
}

impl Display for Json {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Null => f.write_str("null"),
            Self::Bool(value) => value.fmt(f),
            Self::Number(value) => value.fmt(f),
            Self::Text(text) => write_text(text, f),
            Self::List(items) => {
                f.write_char('[')?;
                for (index, item) in items.iter().enumerate() {
                    write!(f, "{}{item}", if index == 0 { "" } else { "," })?;
                }
                f.write_char(']')
            }
            Self::Object(fields) => {
                f.write_char('{')?;
                for (index, (name, value)) in fields.iter().enumerate() {
                    f.write_str(if index == 0 { "" } else { "," })?;
                    write_text(name, f)?;
                    write!(f, ":{value}")?;
                }
                f.write_char('}')
            }
        }
    }
}

fn write_text(text: &str, f: &mut Formatter<'_>) -> fmt::Result {
    f.write_char('"')?;
    for one in text.chars() {
        match one {
            '"' => f.write_str("\\\"")?,
            '\\' => f.write_str("\\\\")?,
            one if one.is_control() => write!(f, "\\u{:04x}", u32::from(one))?,
            one => f.write_char(one)?,
        }
    }
    f.write_char('"')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_written_as_json() {
        let value = Json::Object(vec![
            ("text", "a\"b\\c\n\u{7f}ü".into()),
            ("none", Json::from(None::<i64>)),
            ("list", Json::list([1_i64, -2], Json::from)),
            ("empty", Json::Object(Vec::new())),
            ("bytes", Json::lossy(b"\xff")),
        ]);
        let expected = "{\"text\":\"a\\\"b\\\\c\\u000a\\u007fü\",\"none\":null,\"list\":[1,-2],\
             \"empty\":{},\"bytes\":\"\u{fffd}\"}";
        assert_eq!(value.to_string(), expected);
    }
}
