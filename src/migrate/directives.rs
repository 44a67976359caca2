//! The syntax of nginx configuration: words, quotes and blocks.

/// A directive.
#[derive(Debug, Default)]
pub(super) struct Directive {
    /// Its name and arguments; of a block, the name alone.
    pub(super) words: Vec<String>,
    /// Levels of blocks: 0 for none, 1 for a block without others in it. What is in them is not read.
    pub(super) depth: usize,
}

/// Splits a text into directives. Fails if quotes or braces do not match.
pub(super) fn directives(text: &str) -> Result<Vec<Directive>, ()> {
    let mut directives = Vec::new();
    let mut current = Directive::default();
    let mut word: Option<String> = None;
    let mut depth = 0_usize;
    let mut characters = text.chars().peekable();
    while let Some(character) = characters.next() {
        match character {
            '"' | '\'' if word.is_none() => {
                let text = quoted(&mut characters, character)?;
                current.words.push(text);
            }
            '#' if word.is_none() => while characters.next_if(|next| *next != '\n').is_some() {},
            ';' | '{' | '}' | ' ' | '\t' | '\r' | '\n' => {
                current.words.extend(word.take());
                match character {
                    '{' => {
                        depth += 1;
                        current.depth = current.depth.max(depth);
                    }
                    '}' => {
                        depth = depth.checked_sub(1).ok_or(())?;
                        if depth == 0 {
                            // The directive of the block, without those in it.
                            current.words.truncate(1);
                            directives.push(std::mem::take(&mut current));
                        }
                    }
                    ';' if depth == 0 => directives.push(std::mem::take(&mut current)),
                    _ => {}
                }
            }
            '\\' => {
                let word = word.get_or_insert_default();
                word.push(character);
                word.extend(characters.next());
            }
            // `${name}` is a variable, and no block.
            '$' if characters.peek() == Some(&'{') => {
                let word = word.get_or_insert_default();
                word.push(character);
                for next in characters.by_ref() {
                    word.push(next);
                    if next == '}' {
                        break;
                    }
                }
            }
            other => word.get_or_insert_default().push(other),
        }
    }
    current.words.extend(word);
    match depth == 0 && current.words.is_empty() {
        true => Ok(directives),
        false => Err(()),
    }
}

fn quoted(
    characters: &mut std::iter::Peekable<std::str::Chars<'_>>,
    quote: char,
) -> Result<String, ()> {
    let mut text = String::new();
    while let Some(character) = characters.next() {
        match character {
            '\\' => {
                let next = characters.next().ok_or(())?;
                if next != quote && next != '\\' {
                    text.push('\\');
                }
                text.push(next);
            }
            end if end == quote => return Ok(text),
            other => text.push(other),
        }
    }
    Err(())
}
