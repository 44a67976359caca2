//! A parsed BackendPolicy: its targets and its sections. Must not know other policies.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::api::Resource;
use crate::api::backend_policy::{BackendPolicy as Object, BackendPolicySpec};
use crate::ir::ObjectRef;
use crate::ir::Time;
use crate::ir::backend_policy::{BackendPolicy, Passive};
use crate::ir::traffic::TrafficPolicy;

use super::super::index::TargetPolicy;
use super::super::{session_persistence, traffic_policy};
use super::{health, sections};
use crate::translate::input::Input;
use crate::translate::reason::{Fault, Reason};
use crate::translate::source::Source;

/// A parsed policy. Sections with a fault are left out.
pub(super) struct Policy {
    pub(super) name: ObjectRef,
    pub(super) generation: i64,
    created: Option<Time>,
    pub(super) targets: Vec<Target>,
    /// Number of sections without a fault.
    pub(super) sections: usize,
    pub(super) faults: Vec<Fault>,
    pub(super) ir: Arc<BackendPolicy>,
    /// What it says of the traffic to each target, if it says anything.
    pub(super) traffic: BTreeMap<ObjectRef, Arc<TrafficPolicy>>,
    pub(super) slow_start: Option<Duration>,
}

/// A backend, or one port of it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Target {
    pub(super) backend: ObjectRef,
    pub(super) section: Option<String>,
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.section {
            None => write!(f, "{}", self.backend),
            Some(port) => write!(f, "{} port {port}", self.backend),
        }
    }
}

impl TargetPolicy for Policy {
    fn name(&self) -> &ObjectRef {
        &self.name
    }

    fn backends(&self) -> BTreeSet<&ObjectRef> {
        self.targets.iter().map(|target| &target.backend).collect()
    }

    fn source(backend: ObjectRef) -> Source {
        Source::BackendPolicyOf(backend)
    }

    fn created(&self) -> Option<Time> {
        self.created
    }
}

impl Policy {
    pub(super) fn read(input: &Input<'_>, object: &Object) -> Self {
        let Object { metadata, spec } = object;
        // Destructured, so that a new field fails to compile until it is handled here.
        let BackendPolicySpec {
            target_refs,
            retry_constraint,
            session_persistence,
            load_balancing,
            limits,
            health_check,
            connection,
        } = spec;
        let kinds = &input.options.permissions.backend_kinds;
        let targets = target_refs.iter();
        let targets = targets.filter(|it| input.kinds.is_backend(kinds, &it.group, &it.kind));
        let targets: Vec<_> = targets
            .map(|it| Target {
                backend: ObjectRef::new(&it.group, &it.kind, &metadata.namespace, &it.name),
                section: it.section_name.clone().filter(|name| !name.is_empty()),
            })
            .collect();
        let name = object.object_ref();
        let mut read = Read::default();
        let retry_budget = read.section(retry_constraint.as_ref(), traffic_policy::retry_budget);
        let session = session_persistence.as_ref().filter(|spec| {
            // Whether it is valid does not depend on the backend.
            let checked = session_persistence::of_backend(spec, &name);
            read.section(Some(checked), |checked| checked).is_some()
        });
        let load_balancing = read.section(load_balancing.as_ref(), sections::load_balancing);
        let (load_balancing, slow_start, prefers_zone) = load_balancing.unwrap_or_default();
        let limits = read.section(limits.as_ref(), sections::limits);
        let health = read.section(health_check.as_ref(), health::health_check);
        let (active, passive) = health.unwrap_or((None, Passive::DEFAULT));
        let connection = read.section(connection.as_ref(), sections::connection);
        let traffic = |target: &Target| {
            let backend = &target.backend;
            let session =
                session.and_then(|spec| session_persistence::of_backend(spec, backend).ok());
            let traffic = TrafficPolicy {
                policy: name.clone(),
                session_policy: None,
                retry_budget,
                session,
            };
            (backend.clone(), Arc::new(traffic))
        };
        let has_traffic = retry_budget.is_some() || session.is_some();
        Self {
            generation: metadata.generation,
            created: metadata.creation_timestamp,
            traffic: match has_traffic {
                true => targets.iter().map(traffic).collect(),
                false => BTreeMap::new(),
            },
            targets,
            sections: read.sections,
            faults: read.faults,
            ir: Arc::new(BackendPolicy {
                policy: name.clone(),
                load_balancing,
                prefers_zone,
                limits: limits.unwrap_or_default(),
                active: active.map(Arc::new),
                passive,
                connection: connection.unwrap_or_default(),
            }),
            slow_start,
            name,
        }
    }

    /// Reports whether it targets a backend as a whole, or the port with this name.
    pub(super) fn has_target(&self, backend: &ObjectRef, section: Option<&str>) -> bool {
        let mut targets = self.targets.iter();
        targets.any(|target| target.backend == *backend && target.section.as_deref() == section)
    }
}

/// The sections that were read so far.
#[derive(Default)]
struct Read {
    sections: usize,
    faults: Vec<Fault>,
}

impl Read {
    /// Reads a section. Notes its fault.
    fn section<S, T>(
        &mut self,
        spec: Option<S>,
        read: impl FnOnce(S) -> Result<T, Fault>,
    ) -> Option<T> {
        match read(spec?) {
            Ok(value) => {
                self.sections += 1;
                Some(value)
            }
            Err(fault) => {
                let message = format!("{}; the section is left out", fault.message);
                self.faults.push(Fault::new(Reason::Invalid, message));
                None
            }
        }
    }
}
