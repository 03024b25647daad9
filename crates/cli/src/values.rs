//! Parsers of what stands behind flags.

use std::error::Error;
use std::fmt::Display;
use std::str::FromStr;

use clap::builder::{PossibleValuesParser, TypedValueParser};

/// A word of a few, which help and completions then list.
pub fn one_of<T>(words: impl IntoIterator<Item = &'static str>) -> impl TypedValueParser<Value = T>
where
    T: FromStr<Err: Error + Send + Sync> + Clone + Send + Sync + 'static,
{
    PossibleValuesParser::new(words).try_map(|word| word.parse::<T>())
}

/// A number of at least one.
pub fn at_least_one<T>(text: &str) -> Result<T, String>
where
    T: FromStr<Err: Display> + PartialOrd + From<u8>,
{
    match text.parse::<T>() {
        Ok(n) if n < T::from(1) => Err("must be at least 1".into()),
        other => other.map_err(|error| error.to_string()),
    }
}

/// A text that a request can ask for by name.
pub fn model_name(text: &str) -> Result<String, String> {
    if text.trim().is_empty() { Err("a name has at least one letter".into()) } else { Ok(text.to_owned()) }
}

/// An origin as browsers send it: `*`, or `http` or `https`, a host, and a port unless it is the usual one.
pub fn origin(text: &str) -> Result<String, String> {
    let host = text.strip_prefix("https://").or_else(|| text.strip_prefix("http://"));
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b':' | b'[' | b']');
    match host {
        _ if text == "*" => Ok(text.to_owned()),
        Some(host) if !host.is_empty() && host.bytes().all(fits) => Ok(text.to_ascii_lowercase()),
        _ => Err("an origin has the form https://example.org or http://example.org:8080".into()),
    }
}

/// The name of a host, without a port.
pub fn host_name(text: &str) -> Result<String, String> {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_');
    if !text.is_empty() && text.bytes().all(fits) {
        Ok(text.to_owned())
    } else {
        Err("a name has the form example.org, without a port".into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_what_they_should_be_or_refused() {
        assert_eq!(at_least_one::<u64>("1"), Ok(1));
        assert!(at_least_one::<u64>("0").is_err() && at_least_one::<usize>("-1").is_err());
        assert!(model_name("").is_err() && model_name(" ").is_err());
        assert_eq!(model_name("clover").as_deref(), Ok("clover"));
        for good in ["*", "https://example.org", "http://[::1]:8080", "http://localhost:3000"] {
            assert_eq!(origin(good).as_deref(), Ok(good));
        }
        assert_eq!(origin("https://Example.org").as_deref(), Ok("https://example.org"));
        for bad in
            ["", "foo", "example.org", "https://", "https://example.org/", "ftp://example.org", "https://*"]
        {
            assert!(origin(bad).is_err(), "{bad}");
        }
        assert!(host_name("chat.example.org").is_ok() && host_name("chat.example.org:80").is_err());
    }
}
