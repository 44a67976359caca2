//! Sign-ins that several tabs of one browser begin: each ends in its own tab, and the cookies of all stay few.

use serde_json::json;

use crate::browser::Browser;
use crate::origin::Origin;
use crate::provider::{Provider, form};

/// Number of sign-ins that a browser may have begun. Each has two cookies.
const BOUND: usize = 8;

/// Opens tabs one after the other. Returns where each is sent to.
async fn open(browser: &mut Browser, count: usize) -> Vec<String> {
    let mut locations = Vec::new();
    for tab in 0..count {
        locations.push(browser.begin(&format!("/{tab}")).await);
    }
    locations
}

/// Opens tabs at one moment, such as those that a browser restores: the request of each has the cookies that the browser had
/// before. Returns where each is sent to.
async fn open_at_once(browser: &mut Browser, count: usize) -> Vec<String> {
    let before = browser.cookies.clone();
    let (mut kept, mut locations) = (before.clone(), Vec::new());
    for tab in 0..count {
        browser.cookies.clone_from(&before);
        locations.push(browser.begin(&format!("/{tab}")).await);
        kept.retain(|it| browser.cookies.contains(it) || !before.contains(it));
        let new = browser.cookies.iter().filter(|it| !before.contains(it));
        kept.extend(new.cloned());
    }
    browser.cookies = kept;
    locations
}

/// Signs in in a tab, which returns to its own page.
async fn sign_in(browser: &mut Browser, provider: &Provider, (tab, location): (usize, &String)) {
    let answer = browser.get(&provider.authorize(location)).await;
    assert_eq!(answer.status, 302, "{tab}: {answer:?}");
    assert_eq!(answer.header("location"), format!("http://a.com/{tab}"));
}

#[tokio::test]
async fn tabs_that_open_at_one_moment_all_sign_in() {
    let (origin, provider) = (Origin::echo("origin").await, Provider::start().await);
    let scene = provider.scene(&origin, &json!({})).await;
    for count in [BOUND, 20] {
        let mut browser = Browser::new(scene.at(80), "a.com").await;
        let locations = open_at_once(&mut browser, count).await;
        assert_eq!(browser.cookies.len(), 2 * count);
        for tab in locations.iter().enumerate().rev() {
            sign_in(&mut browser, &provider, tab).await;
        }
        // The cookies of the sign-ins have left.
        assert_eq!(browser.cookies.len(), 1, "{:?}", browser.cookies);
        browser.get("/").await.received();
    }
}

#[tokio::test]
async fn tabs_that_open_one_after_the_other_all_sign_in() {
    let (origin, provider) = (Origin::echo("origin").await, Provider::start().await);
    let scene = provider.scene(&origin, &json!({})).await;
    let mut browser = Browser::new(scene.at(80), "a.com").await;
    let locations = open(&mut browser, BOUND).await;
    assert_eq!(browser.cookies.len(), 2 * BOUND);
    for tab in locations.iter().enumerate() {
        sign_in(&mut browser, &provider, tab).await;
    }
    assert_eq!(browser.cookies.len(), 1, "{:?}", browser.cookies);
}

#[tokio::test]
async fn sign_in_beyond_the_bound_takes_the_place_of_the_oldest() {
    let (origin, provider) = (Origin::echo("origin").await, Provider::start().await);
    let scene = provider.scene(&origin, &json!({})).await;
    let mut browser = Browser::new(scene.at(80), "a.com").await;
    let locations = open(&mut browser, BOUND + 2).await;
    assert_eq!(browser.cookies.len(), 2 * BOUND);
    for (tab, location) in locations.iter().enumerate() {
        if tab >= 2 {
            sign_in(&mut browser, &provider, (tab, location)).await;
            continue;
        }
        let answer = browser.get(&provider.authorize(location)).await;
        assert_eq!(answer.status, 400, "{tab}");
        assert!(answer.text().contains("open the page again"), "{tab}");
    }
    // Tabs that open at one moment go beyond the bound, until the browser begins further sign-ins.
    browser.cookies.clear();
    open_at_once(&mut browser, 20).await;
    for left in [13, BOUND, BOUND] {
        browser.begin("/").await;
        assert_eq!(browser.cookies.len(), 2 * left);
    }
}

#[tokio::test]
async fn sign_ins_of_tabs_end_once_each_and_with_their_own_cookies() {
    let (origin, provider) = (Origin::echo("origin").await, Provider::start().await);
    let scene = provider.scene(&origin, &json!({})).await;
    let mut browser = Browser::new(scene.at(80), "a.com").await;
    let locations = open_at_once(&mut browser, 3).await;
    let begun = browser.cookies.clone();
    let callback = provider.authorize(&locations[0]);
    // Without its own cookies, those of the other tabs are of no use.
    let id = begun[0].name.rsplit_once("-login-").expect("a sign-in").1;
    browser.cookies.retain(|it| !it.name.ends_with(id));
    assert_eq!(browser.cookies.len(), 4);
    assert_eq!(browser.get(&callback).await.status, 400);
    browser.cookies.clone_from(&begun);
    assert_eq!(browser.get(&callback).await.status, 302);
    assert_eq!(browser.get(&callback).await.status, 400);
    // With a copy of the cookies, the provider does not take the code twice.
    let mut copy = Browser::new(scene.at(80), "a.com").await;
    copy.cookies.clone_from(&begun);
    let answer = copy.get(&callback).await;
    assert_eq!(answer.status, 400);
    assert!(copy.session().is_none());
    // A tab whose user denies the sign-in does not end that of another one.
    let (mut parameters, path) = provider.approve(&locations[1]);
    parameters.retain(|(name, _)| name != "code");
    parameters.push(("error".to_owned(), "access_denied".to_owned()));
    let denied = format!("{path}?{}", form(&parameters));
    assert_eq!(browser.get(&denied).await.status, 403);
    sign_in(&mut browser, &provider, (2, &locations[2])).await;
    assert_eq!(browser.cookies.len(), 1, "{:?}", browser.cookies);
    assert_eq!(provider.asked("authorization_code"), 3);
}
