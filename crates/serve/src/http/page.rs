//! `GET /`: the page. It is one document with nothing from elsewhere, and its policy names its style and its script by their digests, so that a
//! browser runs nothing else.

use std::sync::{Arc, LazyLock};

use axum::body::Body;
use axum::extract::State;
use axum::http::header::{CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS};
use axum::http::{HeaderValue, Response};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use sha2::{Digest, Sha256};

use super::app::App;
use super::fault::Fault;

const HTML: &str = include_str!("page/page.html");
const STYLE: &str = include_str!("page/page.css");
const SCRIPT: &str = include_str!("page/page.js");
/// What tells the script whether a key is needed, and what it says where one is.
const KEYS: [&str; 2] = ["data-keys=\"\"", "data-keys=\"needed\""];

/// The document.
static DOCUMENT: LazyLock<String> =
    LazyLock::new(|| HTML.replacen("</style>", &format!("{STYLE}</style>"), 1).replacen("</script>", &format!("{SCRIPT}</script>"), 1));

/// What a browser may do with it.
static POLICY: LazyLock<String> = LazyLock::new(|| {
    let digest = |text: &str| BASE64_STANDARD.encode(Sha256::digest(text));
    format!(
        "default-src 'none'; style-src 'sha256-{}'; script-src 'sha256-{}'; connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; \
         frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'",
        digest(STYLE),
        digest(SCRIPT)
    )
});

/// The page.
///
/// # Errors
/// None in practice: the policy is text of ASCII.
pub async fn page(State(app): State<Arc<App>>) -> Result<Response<Body>, Fault> {
    let [open, needed] = KEYS;
    let document = if app.keys().are_open() { DOCUMENT.clone() } else { DOCUMENT.replacen(open, needed, 1) };
    let mut response = Response::new(Body::from(document));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8"));
    headers.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_str(&POLICY).map_err(|_| Fault::internal())?);
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.insert(REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    Ok(response)
}
