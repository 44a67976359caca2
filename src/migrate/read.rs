//! Reads Ingresses and the objects that they refer to. What has a wrong type is an error with the path of the field.

use std::collections::BTreeMap;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

use super::model::{
    Backend, HostRule, Ingress, Name, PREFIX, PathKind, PathRule, Port, Service, ServicePort,
    Source, Tls,
};
use super::settings::Settings;
use crate::ir::ObjectRef;
use crate::provider::Problem;
use crate::provider::file::written::Written;

/// Maximum number of paths of all Ingresses.
const MAX_PATHS: usize = 100_000;

/// A field of the wrong type or value.
struct Wrong {
    field: String,
    message: String,
}

type Read<T> = Result<T, Wrong>;

/// A value, and its path in the object.
struct Field<'a> {
    value: &'a Value,
    path: String,
}

impl<'a> Field<'a> {
    fn of(value: &'a Value) -> Self {
        Self {
            value,
            path: String::new(),
        }
    }

    fn wrong<T>(&self, message: impl Into<String>) -> Read<T> {
        Err(Wrong {
            field: self.path.clone(),
            message: message.into(),
        })
    }

    /// Returns a field of a map; `None` if it is absent or null.
    fn get(&self, name: &str) -> Read<Option<Self>> {
        let Some(map) = self.value.as_object() else {
            return self.wrong("must be a map");
        };
        let dot = if self.path.is_empty() { "" } else { "." };
        let path = format!("{}{dot}{name}", self.path);
        let value = map.get(name).filter(|value| !value.is_null());
        Ok(value.map(|value| Field { value, path }))
    }

    fn text(&self) -> Read<String> {
        match self.value.as_str() {
            Some(text) => Ok(text.to_owned()),
            None => self.wrong("must be text"),
        }
    }

    fn optional_text(&self, name: &str) -> Read<Option<String>> {
        self.get(name)?.map(|field| field.text()).transpose()
    }

    fn list(&self, name: &str) -> Read<Vec<Self>> {
        let Some(list) = self.get(name)? else {
            return Ok(Vec::new());
        };
        let Some(items) = list.value.as_array() else {
            return list.wrong("must be a list");
        };
        let items = items.iter().enumerate().map(|(index, value)| Field {
            value,
            path: format!("{}[{index}]", list.path),
        });
        Ok(items.collect())
    }

    fn texts(&self, name: &str) -> Read<BTreeMap<String, String>> {
        let Some(map) = self.get(name)? else {
            return Ok(BTreeMap::new());
        };
        let Some(entries) = map.value.as_object() else {
            return map.wrong("must be a map");
        };
        let text = |(key, value): (&String, &Value)| {
            let path = format!("{}.{key}", map.path);
            let text = Field { value, path }.text()?;
            Ok((key.clone(), text))
        };
        entries.iter().map(text).collect()
    }

    fn port(&self) -> Read<u16> {
        let number = self.value.as_u64().and_then(|it| u16::try_from(it).ok());
        match number.filter(|it| *it > 0) {
            Some(number) => Ok(number),
            None => self.wrong("must be a port, 1 to 65535"),
        }
    }
}

/// Reads all objects. The problems are those of objects of which a part cannot be read.
pub(super) fn source(objects: &[Written], settings: &Settings) -> Result<Source, Vec<Problem>> {
    let (mut source, mut problems) = (Source::default(), Vec::new());
    let default_class = objects
        .iter()
        .any(|it| is_default_class(&it.value, settings));
    for object in objects {
        let read = add(&mut source, &object.value, settings, default_class);
        if let Err(Wrong { field, message }) = read {
            let mut problem = object.problem(&field, message);
            problem.object = reference(&object.value);
            problems.push(problem);
        }
    }
    let mut seen = BTreeMap::new();
    for ingress in &source.ingresses {
        if seen.insert(&ingress.name, ()).is_some() {
            let name = &ingress.name;
            let object = ObjectRef::new(GROUP, "Ingress", &name.namespace, &name.name);
            problems.push(Problem::of_object(object, 0, "appears twice in the input"));
        }
    }
    let paths = source.ingresses.iter().flat_map(|it| &it.rules);
    if paths.map(|rule| rule.paths.len()).sum::<usize>() > MAX_PATHS {
        let message = format!("the Ingresses have more than {MAX_PATHS} paths");
        let severity = crate::finding::Severity::Error;
        problems.push(Problem::of_file(severity, "", message));
    }
    if !problems.is_empty() {
        return Err(problems);
    }
    let order = |it: &Ingress| (it.created.clone(), it.name.clone());
    source.ingresses.sort_by_key(order);
    Ok(source)
}

const GROUP: &str = "networking.k8s.io";

fn reference(value: &Value) -> Option<ObjectRef> {
    let (kind, name) = (value["kind"].as_str()?, value["metadata"]["name"].as_str()?);
    let (group, _) = value["apiVersion"]
        .as_str()?
        .split_once('/')
        .unwrap_or_default();
    let namespace = value["metadata"]["namespace"].as_str();
    Some(ObjectRef::new(
        group,
        kind,
        namespace.unwrap_or("default"),
        name,
    ))
}

fn is_default_class(value: &Value, settings: &Settings) -> bool {
    value["kind"] == "IngressClass"
        && value["metadata"]["name"] == *settings.ingress_class
        && value["metadata"]["annotations"]["ingressclass.kubernetes.io/is-default-class"] == "true"
}

fn add(source: &mut Source, value: &Value, settings: &Settings, default: bool) -> Read<()> {
    let object = Field::of(value);
    let kind = object.optional_text("kind")?.unwrap_or_default();
    let version = object.optional_text("apiVersion")?.unwrap_or_default();
    match (version.as_str(), kind.as_str()) {
        ("networking.k8s.io/v1", "Ingress") => add_ingress(source, &object, settings, default),
        (_, "Ingress") => Err(Wrong {
            field: "apiVersion".to_owned(),
            message: "must be networking.k8s.io/v1".to_owned(),
        }),
        ("v1", "Service") => {
            let service = service(&object)?;
            source.services.insert(name(&object)?, service);
            Ok(())
        }
        ("v1", "ConfigMap") => {
            let data = object.texts("data")?;
            source.config_maps.insert(name(&object)?, data);
            Ok(())
        }
        ("v1", "Secret") => {
            source.passwords.insert(name(&object)?, passwords(value));
            Ok(())
        }
        _ => {
            source.others += 1;
            Ok(())
        }
    }
}

fn name(object: &Field<'_>) -> Read<Name> {
    let Some(metadata) = object.get("metadata")? else {
        return object.wrong("must have metadata");
    };
    let namespace = metadata.optional_text("namespace")?;
    let namespace = namespace.unwrap_or_else(|| "default".to_owned());
    let name = metadata.optional_text("name")?.unwrap_or_default();
    // These become parts of the names of other objects and of files.
    for (field, text) in [("namespace", &namespace), ("name", &name)] {
        if !is_dns_name(text) || field == "namespace" && text.contains('.') {
            return Err(Wrong {
                field: format!("metadata.{field}"),
                message: "must be a name of Kubernetes".to_owned(),
            });
        }
    }
    Ok(Name { namespace, name })
}

/// Reports whether a text is a DNS subdomain (RFC 1123).
pub(super) fn is_dns_name(text: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    let is_label = |label: &str| {
        !label.is_empty()
            && label.bytes().all(fits)
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    text.len() <= 253 && text.split('.').all(is_label)
}

fn add_ingress(
    source: &mut Source,
    object: &Field<'_>,
    settings: &Settings,
    is_default: bool,
) -> Read<()> {
    let name = name(object)?;
    let metadata = object.get("metadata")?;
    let metadata = metadata.unwrap_or_else(|| Field::of(&Value::Null));
    let annotations = metadata.texts("annotations")?;
    let Some(spec) = object.get("spec")? else {
        return object.wrong("must have spec");
    };
    let class = spec.optional_text("ingressClassName")?;
    let class = class.or_else(|| annotations.get("kubernetes.io/ingress.class").cloned());
    let is_own = match &class {
        Some(class) => *class == settings.ingress_class,
        None => is_default,
    };
    if !is_own {
        source.left.push((name, class));
        return Ok(());
    }
    let own = |(key, value): (String, String)| {
        let key = key.strip_prefix(PREFIX)?.to_owned();
        Some((key, value))
    };
    let created = metadata.optional_text("creationTimestamp")?;
    let default_backend = spec.get("defaultBackend")?;
    source.ingresses.push(Ingress {
        name,
        created: created.unwrap_or_default(),
        annotations: annotations.into_iter().filter_map(own).collect(),
        tls: spec.list("tls")?.iter().map(tls).collect::<Read<_>>()?,
        default_backend: default_backend.map(|it| backend(&it)).transpose()?,
        rules: spec.list("rules")?.iter().map(rule).collect::<Read<_>>()?,
    });
    Ok(())
}

fn tls(entry: &Field<'_>) -> Read<Tls> {
    let hosts = entry.list("hosts")?;
    let hosts = hosts.iter().map(host).collect::<Read<Vec<_>>>()?;
    let secret = entry.get("secretName")?;
    let secret = secret.map(|secret| {
        let name = secret.text()?;
        match is_dns_name(&name) || name.is_empty() {
            true => Ok(name),
            false => secret.wrong("must be the name of a Secret"),
        }
    });
    let secret = secret.transpose()?.filter(|name| !name.is_empty());
    Ok(Tls { hosts, secret })
}

fn host(field: &Field<'_>) -> Read<String> {
    let host = field.text()?.to_ascii_lowercase();
    match host.is_empty() || is_hostname(&host) {
        true => Ok(host),
        false => field.wrong("must be a DNS name, which may begin with `*.`"),
    }
}

/// Reports whether a name is that of an object in a namespace.
pub(super) fn is_object(name: &Name) -> bool {
    is_dns_name(&name.name) && is_dns_name(&name.namespace) && !name.namespace.contains('.')
}

/// Reports whether a text is a DNS name that may begin with `*.`.
pub(super) fn is_hostname(host: &str) -> bool {
    is_dns_name(host.strip_prefix("*.").unwrap_or(host))
}

fn rule(entry: &Field<'_>) -> Read<HostRule> {
    let host = entry.get("host")?.map(|field| host(&field)).transpose()?;
    let http = entry.get("http")?;
    let paths = http.map(|http| http.list("paths")).transpose()?;
    let paths = paths.unwrap_or_default();
    Ok(HostRule {
        host: host.unwrap_or_default(),
        paths: paths.iter().map(path).collect::<Read<_>>()?,
    })
}

fn path(entry: &Field<'_>) -> Read<PathRule> {
    let kind = match entry.get("pathType")? {
        None => PathKind::ImplementationSpecific,
        Some(kind) => match kind.text()?.as_str() {
            "Exact" => PathKind::Exact,
            "Prefix" => PathKind::Prefix,
            "ImplementationSpecific" => PathKind::ImplementationSpecific,
            _ => return kind.wrong("must be Exact, Prefix or ImplementationSpecific"),
        },
    };
    let text = match entry.get("path")? {
        None => "/".to_owned(),
        Some(path) => {
            let text = path.text()?;
            if !text.starts_with('/') || text.len() > 1000 || text.contains(char::is_control) {
                return path.wrong("must begin with `/` and have at most 1000 characters");
            }
            text
        }
    };
    let Some(target) = entry.get("backend")? else {
        return entry.wrong("must have a backend");
    };
    Ok(PathRule {
        path: text,
        kind,
        backend: backend(&target)?,
    })
}

fn backend(field: &Field<'_>) -> Read<Backend> {
    if let Some(resource) = field.get("resource")? {
        let kind = resource.optional_text("kind")?.unwrap_or_default();
        let name = resource.optional_text("name")?.unwrap_or_default();
        return Ok(Backend::Resource(format!("{kind} {name}")));
    }
    let Some(service) = field.get("service")? else {
        return field.wrong("must have service or resource");
    };
    let name = service.optional_text("name")?.unwrap_or_default();
    if !is_dns_name(&name) {
        return service.wrong("must have the name of a Service");
    }
    let Some(port) = service.get("port")? else {
        return service.wrong("must have a port");
    };
    let port = match (port.get("number")?, port.optional_text("name")?) {
        (Some(number), _) => Port::Number(number.port()?),
        (None, Some(name)) => Port::Name(name),
        (None, None) => return port.wrong("must have number or name"),
    };
    Ok(Backend::Service { name, port })
}

fn service(object: &Field<'_>) -> Read<Service> {
    let Some(spec) = object.get("spec")? else {
        return Ok(Service::default());
    };
    let target = |field: Field<'_>| match field.value.as_str() {
        Some(name) => name.to_owned(),
        None => field.value.to_string(),
    };
    let port = |field: &Field<'_>| {
        let Some(number) = field.get("port")? else {
            return field.wrong("must have a port");
        };
        Ok(ServicePort {
            name: field.optional_text("name")?,
            number: number.port()?,
            target: field.get("targetPort")?.map(target),
            app_protocol: field.optional_text("appProtocol")?,
        })
    };
    Ok(Service {
        is_external: spec.optional_text("type")?.as_deref() == Some("ExternalName"),
        ports: spec.list("ports")?.iter().map(port).collect::<Read<_>>()?,
    })
}

/// Returns the lines of an htpasswd file in a Secret.
fn passwords(value: &Value) -> Option<String> {
    if let Some(text) = value["stringData"]["auth"].as_str() {
        return Some(text.to_owned());
    }
    let encoded = value["data"]["auth"].as_str()?;
    let bytes = STANDARD.decode(encoded).ok()?;
    String::from_utf8(bytes).ok()
}
