//! Where `http3` of a ClientPolicy is off: without an HTTPS listener, where a UDP listener has the port, and beside the PROXY
//! protocol. Must not know what the section says.

use std::collections::BTreeSet;

use crate::ir::ListenerKey;
use crate::status::Condition;

use super::super::affected::listed;
use super::effective::proxied_by;
use super::path::Levels;
use super::policy::{Policy, Section};
use crate::translate::gateway::quic::Quic;
use crate::translate::reason::{ConditionType, Reason};

/// The listeners on which `http3` of a policy has no effect, although no other policy prevents it.
#[derive(Default)]
pub(super) struct Unserved {
    /// Whether it applies to an HTTPS listener.
    has_https: bool,
    /// What is not HTTPS.
    others: BTreeSet<String>,
    /// Why it is off on HTTPS listeners.
    off: BTreeSet<String>,
}

impl Unserved {
    /// Adds a listener that the section of a policy applies to. `of_port` are the policies on its port.
    pub(super) fn add(
        &mut self,
        policy: &Policy,
        (listener, quic): (&ListenerKey, &Quic),
        of_port: &Levels<'_>,
    ) {
        let (field, name) = (Section::Http3.field(), &policy.name);
        match quic {
            Quic::NotHttps => {
                self.others.insert(listener.to_string());
                return;
            }
            Quic::Taken { port, by } => {
                let why = format!("{field} of {name} is off on port {port}: {by} has it for UDP");
                self.off.insert(why);
            }
            Quic::Possible => {}
        }
        self.has_https = true;
        self.off.extend(proxied_by(of_port).map(|it| {
            let (of_proxies, other) = (it.section.field(), &it.policy.name);
            let place = match it.content() {
                Ok(_) => "applies",
                Err(_) => "cannot be used",
            };
            format!(
                "{field} of {name} is off where {of_proxies} of {other} {place}: QUIC has no header of the PROXY protocol"
            )
        }));
    }

    /// Returns the condition of the policy, if HTTP/3 is off on an HTTPS listener, or if it applies to none.
    pub(super) fn condition(&self, policy: &Policy) -> Option<Condition> {
        let message = match (self.has_https, self.others.is_empty()) {
            (false, false) => {
                let (field, name) = (Section::Http3.field(), &policy.name);
                let others = listed(&self.others, ", ");
                format!(
                    "{field} of {name} is off: it needs a listener of protocol HTTPS, unlike {others}"
                )
            }
            _ if self.off.is_empty() => return None,
            _ => listed(&self.off, "; "),
        };
        let kind = ConditionType::HTTP3Off;
        let condition = Condition::holds(kind, Reason::HTTP3Off, policy.generation);
        Some(condition.with_message(message))
    }
}
