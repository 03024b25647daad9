//! The page at `/`: a chat, and the blocks of the answer as they are resolved. Hand-written files,
//! compiled in.

use axum::Router;
use axum::http::header;
use axum::routing::get;

/// The page loads what comes from this server and nothing else.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
                      img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// Path, content type and content of each file.
const FILES: [(&str, &str, &str); 5] = [
    ("/", "text/html; charset=utf-8", include_str!("../page/index.html")),
    ("/style.css", "text/css; charset=utf-8", include_str!("../page/style.css")),
    ("/app.js", "text/javascript; charset=utf-8", include_str!("../page/app.js")),
    ("/watch.js", "text/javascript; charset=utf-8", include_str!("../page/watch.js")),
    ("/markdown.js", "text/javascript; charset=utf-8", include_str!("../page/markdown.js")),
];

/// The files as routes.
pub(crate) fn routes<S: Clone + Send + Sync + 'static>() -> Router<S> {
    FILES.into_iter().fold(Router::new(), |router, (path, kind, content)| {
        let headers = [
            (header::CONTENT_TYPE, kind),
            (header::CONTENT_SECURITY_POLICY, POLICY),
            (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
            (header::CACHE_CONTROL, "no-cache"),
        ];
        router.route(path, get(move || std::future::ready((headers, content))))
    })
}
