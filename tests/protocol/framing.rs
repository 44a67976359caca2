//! Messages whose framing or syntax is broken (A): each gets its refusal and no second reading.

use crate::fixture::Fixture;
use crate::harness::origin::Origin;

#[test]
fn smoke() {
    let fixture = Fixture::new(Origin::hello());
    fixture.is_well(0);
}
