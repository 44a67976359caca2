//! Changes of an input that keep it a set of objects: a field removed, moved, doubled or given another value. Bytes alone
//! would mostly break the YAML.

use serde_json::{Value, json};

use crate::random::Random;
use crate::{goldens, objects};

/// Bytes that the text of one value may grow by.
const GROWTH: usize = 32;

/// What changes the first bytes of a buffer: gets the buffer, how many bytes count and how many may, and returns how many
/// there are then.
pub type MutateBytes<'a> = &'a mut dyn FnMut(&mut [u8], usize, usize) -> usize;

/// Changes the documents in `data`, of which `size` bytes count. `None` when they are none or became too long.
pub fn documents(
    data: &mut [u8],
    size: usize,
    max_size: usize,
    seed: u32,
    bytes: MutateBytes<'_>,
) -> Option<usize> {
    let mut random = Random::new(seed.into());
    let text = std::str::from_utf8(data.get(..size)?).ok()?;
    let mut documents = objects::documents(text)?;
    // What a golden is expected to come to is no object.
    documents.retain(|value| value.get("kind").is_some() || value.get("test").is_some());
    for _ in 0..random.within(1..4) {
        if random.within(0..8) == 0 || documents.is_empty() {
            change_set(&mut documents, &mut random);
        } else {
            let index = random.within(0..documents.len());
            let donor = documents[random.within(0..documents.len())].clone();
            change_value(&mut documents[index], &donor, &mut random, bytes);
        }
    }
    let text = objects::text(&documents);
    if text.len() > max_size {
        return None;
    }
    data.get_mut(..text.len())?.copy_from_slice(text.as_bytes());
    Some(text.len())
}

/// Drops, doubles or adds a document.
fn change_set(documents: &mut Vec<Value>, random: &mut Random) {
    let index = random.within(0..documents.len());
    match random.within(0..3) {
        0 if index < documents.len() => drop(documents.remove(index)),
        1 if index < documents.len() => {
            let mut copy = documents[index].clone();
            if let Some(name) = copy.pointer_mut("/metadata/name") {
                *name = json!(["a", "b", "web", "cert"][random.within(0..4)]);
            }
            documents.push(copy);
        }
        _ => {
            let golden = random.one(&goldens::ALL).map_or(&[][..], Vec::as_slice);
            documents.extend(random.one(golden).cloned());
        }
    }
}

/// Changes one place of `value`; `donor` is where values are moved from.
fn change_value(
    value: &mut Value,
    donor: &Value,
    random: &mut Random,
    mutate_bytes: MutateBytes<'_>,
) {
    let mut places = Vec::new();
    list(value, String::new(), &mut places);
    // Another kind is rarely what is wanted: nothing of the object would fit it.
    if random.within(0..16) > 0 {
        places.retain(|place| !matches!(place.as_str(), "" | "/kind" | "/apiVersion"));
    }
    let Some(place) = random.one(&places) else {
        return;
    };
    if random.within(0..4) == 0 {
        remove(value, place);
        return;
    }
    let Some(here) = value.pointer_mut(place) else {
        return;
    };
    match (random.within(0..4), here) {
        (0, here) => {
            let mut places = Vec::new();
            list(donor, String::new(), &mut places);
            let given = random.one(&places).and_then(|place| donor.pointer(place));
            *here = given.cloned().unwrap_or_default();
        }
        (_, Value::String(text)) if random.within(0..3) > 0 => {
            *text = changed_text(text, mutate_bytes)
        }
        (1 | 2, Value::Array(items)) if !items.is_empty() => {
            let item = items[random.within(0..items.len())].clone();
            items.insert(random.within(0..items.len()), item);
        }
        (1 | 2, Value::Object(fields)) => {
            let mut places = Vec::new();
            list(donor, String::new(), &mut places);
            if let Some(place) = random.one(&places)
                && let Some((_, name)) = place.rsplit_once('/')
            {
                fields.insert(
                    name.to_owned(),
                    donor.pointer(place).cloned().unwrap_or_default(),
                );
            }
        }
        (_, here) => *here = interesting(random),
    }
}

/// The JSON pointers of `value` and everything in it. Names that a pointer would have to escape are left out.
fn list(value: &Value, place: String, places: &mut Vec<String>) {
    match value {
        Value::Array(items) => items
            .iter()
            .enumerate()
            .for_each(|(index, item)| list(item, format!("{place}/{index}"), places)),
        Value::Object(fields) => fields
            .iter()
            .filter(|(name, _)| !name.contains(['/', '~']))
            .for_each(|(name, field)| list(field, format!("{place}/{name}"), places)),
        _ => {}
    }
    places.push(place);
}

fn remove(value: &mut Value, place: &str) {
    let Some((parent, name)) = place.rsplit_once('/') else {
        return;
    };
    match value.pointer_mut(parent) {
        Some(Value::Object(fields)) => drop(fields.remove(name)),
        Some(Value::Array(items)) => {
            if let Some(index) = name.parse().ok().filter(|index| *index < items.len()) {
                items.remove(index);
            }
        }
        _ => {}
    }
}

/// What changing its bytes makes of a text. libFuzzer puts in words that it has seen the program compare.
fn changed_text(text: &str, mutate_bytes: MutateBytes<'_>) -> String {
    let mut bytes = text.as_bytes().to_vec();
    let size = bytes.len();
    bytes.resize(size + GROWTH, 0);
    let max_size = bytes.len();
    let size = mutate_bytes(&mut bytes, size, max_size);
    bytes.truncate(size);
    String::from_utf8_lossy(&bytes).into_owned()
}

fn interesting(random: &mut Random) -> Value {
    let values = [
        json!(null),
        json!([]),
        json!({}),
        json!(true),
        json!(0),
        json!(-1),
        json!(65_535),
        json!(65_536),
        json!(4_294_967_296_u64),
        json!(i64::MIN),
        json!(0.5),
        json!(""),
        json!("*"),
        json!("*."),
        json!("*.example.com"),
        json!("a.example.com"),
        json!("/"),
        json!("//a/"),
        json!("1h99999999999s"),
        json!("(?i)^(a|é)*$"),
        json!("[::1]"),
        json!("127.0.0.1"),
        json!("HTTPS"),
        json!("RegularExpression"),
        json!("portcullis"),
        json!("default"),
    ];
    random.one(&values).cloned().unwrap_or_default()
}
