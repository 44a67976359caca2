//! Values of flags that are one of a few names.

/// Parses a name.
pub(super) fn parse<T: Copy>(names: &[(T, &str)], text: &str) -> Result<T, String> {
    let found = names.iter().find(|(_, name)| *name == text);
    found.map(|(value, _)| *value).ok_or_else(|| {
        let names: Vec<_> = names.iter().map(|(_, name)| *name).collect();
        format!("must be one of {}", names.join(", "))
    })
}

/// Returns the name of a value.
pub(super) fn name<'a, T: PartialEq>(names: &[(T, &'a str)], value: &T) -> &'a str {
    let mut names = names.iter();
    names
        .find(|(known, _)| known == value)
        .map_or("", |(_, name)| name)
}
