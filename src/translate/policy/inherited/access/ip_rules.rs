//! `ipRules`: the addresses of clients that may send requests.

use crate::api::access_policy::IpRules;
use crate::ir::cidr::{self, CidrSet};

use super::super::policy::Content;
use crate::translate::reason::{Fault, Reason, all};

/// Parses the section.
pub(super) fn read(rules: &IpRules) -> Result<Content, Fault> {
    let IpRules { allow, deny } = rules;
    let allow = allow.as_ref();
    let allow = allow.map(|cidrs| self::cidrs(cidrs, "spec.ipRules.allow"));
    Ok(Content::IpRules {
        allow: allow.transpose()?,
        deny: cidrs(deny, "spec.ipRules.deny")?,
    })
}

/// Parses the CIDRs of a field.
pub(in super::super) fn cidrs(texts: &[String], field: &str) -> Result<CidrSet, Fault> {
    let cidr = |(index, text): (usize, &String)| {
        cidr::parse(text).ok_or_else(|| {
            let message = format!(
                "{field}[{index}]: {text:?} is neither an address nor a CIDR such as 10.0.0.0/8 or fd00::/8"
            );
            Fault::new(Reason::Invalid, message)
        })
    };
    all(texts.iter().enumerate().map(cidr))
}
