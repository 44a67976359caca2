//! Sets of addresses, written as CIDRs. Looked up without allocation, in the logarithm of their number.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use serde::{Serialize, Serializer};

/// Bits of the prefix of IPv4-mapped addresses.
const MAPPED_PREFIX: u8 = 96;

/// Bits of the networks of IPv6 that count as one client: a host usually has a whole one.
const CLIENT_PREFIX: u32 = 64;

/// Returns what counts as one client: an IPv4 address, or a network of IPv6.
pub fn client_network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => {
            let mask = u128::MAX << (128 - CLIENT_PREFIX);
            Ipv6Addr::from_bits(address.to_bits() & mask).into()
        }
        address => address,
    }
}

/// A set of addresses. Equal sets have equal values, however their CIDRs were written.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct CidrSet {
    /// In order, without overlaps, and as few as possible. Each begins with its own address.
    v4: Box<[Ipv4Net]>,
    v6: Box<[Ipv6Net]>,
}

impl CidrSet {
    /// Reports whether an address is in the set. An IPv4-mapped address counts as IPv4.
    #[inline]
    pub fn contains(&self, address: IpAddr) -> bool {
        match address.to_canonical() {
            IpAddr::V4(address) => {
                let after = self.v4.partition_point(|net| net.addr() <= address);
                self.v4[..after]
                    .last()
                    .is_some_and(|net| net.contains(&address))
            }
            IpAddr::V6(address) => {
                let after = self.v6.partition_point(|net| net.addr() <= address);
                self.v6[..after]
                    .last()
                    .is_some_and(|net| net.contains(&address))
            }
        }
    }

    /// Reports whether every address of another set is in this one.
    pub fn contains_all(&self, other: &Self) -> bool {
        // Both are as short as possible, so that a CIDR of the other set is within one of this one.
        let v4 = |net: &Ipv4Net| self.v4.iter().any(|own| own.contains(net));
        let v6 = |net: &Ipv6Net| self.v6.iter().any(|own| own.contains(net));
        other.v4.iter().all(v4) && other.v6.iter().all(v6)
    }

    /// Returns the addresses of both sets.
    #[must_use]
    pub fn union(&self, other: &Self) -> Self {
        self.iter().chain(other.iter()).collect()
    }

    /// Returns the addresses that are in both sets.
    #[must_use]
    pub fn intersection(&self, other: &Self) -> Self {
        // Of two CIDRs that overlap, one is within the other.
        let is_within = |net: &IpNet, all: &Self| all.iter().any(|it| it.contains(net));
        let own = self.iter().filter(|net| is_within(net, other));
        let of_other = other.iter().filter(|net| is_within(net, self));
        own.chain(of_other).collect()
    }

    /// Reports whether no address is in the set.
    pub fn is_empty(&self) -> bool {
        self.v4.is_empty() && self.v6.is_empty()
    }

    /// Returns the CIDRs, IPv4 first.
    pub fn iter(&self) -> impl Iterator<Item = IpNet> {
        let v4 = self.v4.iter().copied().map(IpNet::V4);
        v4.chain(self.v6.iter().copied().map(IpNet::V6))
    }
}

impl FromIterator<IpNet> for CidrSet {
    fn from_iter<I: IntoIterator<Item = IpNet>>(nets: I) -> Self {
        let (mut v4, mut v6) = (Vec::new(), Vec::new());
        for net in nets {
            match canonical(net.trunc()) {
                IpNet::V4(net) => v4.push(net),
                IpNet::V6(net) => v6.push(net),
            }
        }
        let (mut v4, mut v6) = (Ipv4Net::aggregate(&v4), Ipv6Net::aggregate(&v6));
        v4.sort_unstable();
        v6.sort_unstable();
        Self {
            v4: v4.into(),
            v6: v6.into(),
        }
    }
}

impl Serialize for CidrSet {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.iter().map(|net| net.to_string()))
    }
}

/// Parses a CIDR, or an address, which stands for itself alone. Returns `None` if it is neither.
pub fn parse(text: &str) -> Option<IpNet> {
    let address = || text.parse::<IpAddr>().ok().map(IpNet::from);
    text.parse().ok().or_else(address)
}

/// Returns a CIDR of IPv4-mapped addresses as one of IPv4.
fn canonical(net: IpNet) -> IpNet {
    let IpNet::V6(v6) = net else {
        return net;
    };
    let mapped: Option<Ipv4Addr> = v6.network().to_ipv4_mapped();
    let length = v6.prefix_len().checked_sub(MAPPED_PREFIX);
    let v4 = mapped.zip(length);
    let v4 = v4.and_then(|(address, length)| Ipv4Net::new(address, length).ok());
    v4.map_or(net, IpNet::V4)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn set(cidrs: &[&str]) -> CidrSet {
        cidrs.iter().map(|cidr| parse(cidr).unwrap()).collect()
    }

    fn contains(set: &CidrSet, address: &str) -> bool {
        set.contains(address.parse().unwrap())
    }

    #[test]
    fn addresses_are_found_in_the_cidr_that_contains_them() {
        let set = set(&["10.0.0.0/8", "192.168.1.7", "2001:db8::/32"]);
        for inside in ["10.0.0.0", "10.255.255.255", "192.168.1.7", "2001:db8::1"] {
            assert!(contains(&set, inside), "{inside}");
        }
        for outside in ["9.255.255.255", "11.0.0.0", "192.168.1.8", "2001:db9::"] {
            assert!(!contains(&set, outside), "{outside}");
        }
    }

    #[test]
    fn mapped_addresses_are_those_of_ipv4() {
        assert!(contains(&set(&["10.0.0.0/8"]), "::ffff:10.1.2.3"));
        assert!(contains(&set(&["::ffff:10.0.0.0/104"]), "10.1.2.3"));
        assert!(!contains(&set(&["::/0"]), "::ffff:10.1.2.3"));
        assert!(!contains(&set(&["0.0.0.0/0"]), "::1"));
    }

    #[test]
    fn equal_sets_are_equal_values() {
        let whole = set(&["10.0.0.0/8"]);
        assert_eq!(set(&["10.0.0.0/9", "10.128.0.0/9", "10.1.2.3"]), whole);
        assert_eq!(set(&["10.1.2.3/8"]), whole);
    }

    #[test]
    fn a_set_contains_its_parts_alone() {
        let (whole, part) = (set(&["10.0.0.0/8", "fd00::/8"]), set(&["10.2.0.0/16"]));
        assert!(whole.contains_all(&part) && whole.contains_all(&whole));
        assert!(!part.contains_all(&whole) && part.contains_all(&CidrSet::default()));
    }

    #[test]
    fn addresses_of_both_sets_are_in_the_intersection() {
        let one = set(&["10.0.0.0/8", "192.0.2.1", "fd00::/8"]);
        let other = set(&["10.1.0.0/16", "192.0.2.0/24", "fe80::/16"]);
        let both = set(&["10.1.0.0/16", "192.0.2.1"]);
        assert_eq!(one.intersection(&other), both);
        assert_eq!(other.intersection(&one), both);
    }

    #[test]
    fn clients_of_ipv6_are_networks() {
        let network = |text: &str| client_network(text.parse().unwrap());
        assert_eq!(network("2001:db8::1"), network("2001:db8::ffff:1"));
        assert_ne!(network("2001:db8::1"), network("2001:db8:0:1::1"));
        assert_eq!(network("::ffff:192.0.2.1"), network("192.0.2.1"));
        assert_ne!(network("192.0.2.1"), network("192.0.2.2"));
    }

    #[test]
    fn neither_a_cidr_nor_an_address_is_refused() {
        for text in [
            "",
            "10.0.0.0/33",
            "10.0.0",
            "::/129",
            "example.com",
            "10.0.0.0/",
        ] {
            assert_eq!(parse(text), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn finds_what_a_scan_of_all_cidrs_finds(
            nets in proptest::collection::vec((any::<u32>(), 0..=32_u8), 0..40),
            address: u32,
        ) {
            let nets = nets.into_iter().map(|(address, length)| {
                IpNet::V4(Ipv4Net::new(address.into(), length).unwrap())
            });
            let nets: Vec<_> = nets.collect();
            let near = nets.first().map_or(address, |net| match net.network() {
                IpAddr::V4(first) => u32::from(first) | (address & 0xff),
                IpAddr::V6(_) => address,
            });
            let set: CidrSet = nets.iter().copied().collect();
            for address in [address, near] {
                let address = IpAddr::V4(address.into());
                let expected = nets.iter().any(|net| net.contains(&address));
                prop_assert_eq!(set.contains(address), expected);
            }
        }
    }
}
