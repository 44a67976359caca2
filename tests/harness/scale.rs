//! How many random cases and how much load a test takes.

/// Multiplies a usual number by the variable `TEST_SCALE`, which is 1 where it is not set. `.ci/long` sets it.
pub(crate) fn scaled(usual: u32) -> u32 {
    let scale = std::env::var("TEST_SCALE").map_or(Ok(1), |scale| scale.parse::<u32>());
    usual * scale.expect("TEST_SCALE is a whole number")
}
