//! The paths of routes, as metrics name them.

/// The page.
pub const PAGE: &str = "/";
/// What it counts, which asks for a key where it is told to.
pub const METRICS: &str = "/metrics";
/// What the server does, which asks for a key, as it tells the names of adapters.
pub const STATUS: &str = "/status";
/// Every path; one that ends in `/` stands for all below it, but for the page's.
pub const ROUTES: [&str; 22] = [
    PAGE,
    "/health",
    METRICS,
    "/openapi.json",
    STATUS,
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/embeddings",
    "/v1/load_lora_adapter",
    "/v1/lora_adapters",
    "/v1/models",
    "/v1/models/",
    "/v1/unload_lora_adapter",
    "/v2",
    "/v2/health/",
    "/v2/models/",
    "/v2/repository/index",
    "/v2/repository/models/",
    "/v2/systemsharedmemory/",
    "/v2/trifuse/regions",
    "/v2/trifuse/regions/",
    "/version",
];
/// The name of what is no route.
const OTHER: &str = "other";

/// The route of a path.
pub fn route(path: &str) -> &'static str {
    let leads = |route: &&&str| path == **route || (**route != PAGE && route.ends_with('/') && path.starts_with(**route));
    ROUTES.iter().find(leads).copied().unwrap_or(OTHER)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_has_one_route_and_the_page_is_not_all_of_them() {
        assert_eq!(["/", "/status", "/v1/models", "/v1/models/a/b"].map(route), ["/", "/status", "/v1/models", "/v1/models/"]);
        assert_eq!(["", "/nothing", "/v1", "/health/x"].map(route), [OTHER; 4]);
    }
}
