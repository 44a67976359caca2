//! The directives of nginx that refuse no requests, so that a snippet with others may restrict access.

/// Directives that refuse no requests, so that leaving them out opens nothing. Headers that they set are removed.
const HARMLESS: &[&str] = &[
    "absolute_redirect",
    "access_log",
    "add_header",
    "add_trailer",
    "aio",
    "brotli",
    "charset",
    "client_body_temp_path",
    "client_body_timeout",
    "client_header_buffer_size",
    "client_header_timeout",
    "client_max_body_size",
    "default_type",
    "error_log",
    "error_page",
    "etag",
    "expires",
    "grpc_read_timeout",
    "grpc_send_timeout",
    "js_import",
    "js_path",
    "js_set",
    "keepalive_requests",
    "keepalive_timeout",
    "limit_rate",
    "limit_rate_after",
    "lua_shared_dict",
    "more_clear_headers",
    "more_set_headers",
    "more_set_input_headers",
    "port_in_redirect",
    "proxy_connect_timeout",
    "proxy_cookie_domain",
    "proxy_cookie_flags",
    "proxy_cookie_path",
    "proxy_hide_header",
    "proxy_ignore_headers",
    "proxy_intercept_errors",
    "proxy_max_temp_file_size",
    "proxy_next_upstream",
    "proxy_next_upstream_timeout",
    "proxy_next_upstream_tries",
    "proxy_pass_header",
    "proxy_read_timeout",
    "proxy_send_timeout",
    "proxy_set_header",
    "proxy_socket_keepalive",
    "proxy_ssl_name",
    "proxy_ssl_protocols",
    "proxy_temp_path",
    "real_ip_header",
    "real_ip_recursive",
    "recursive_error_pages",
    "reset_timedout_connection",
    "resolver",
    "resolver_timeout",
    "rewrite_log",
    "send_timeout",
    "server_name_in_redirect",
    "server_tokens",
    "set",
    "set_real_ip_from",
    "ssl_buffer_size",
    "ssl_ciphers",
    "ssl_prefer_server_ciphers",
    "ssl_protocols",
    "sub_filter",
    "sub_filter_once",
    "sub_filter_types",
    "underscores_in_headers",
    "uninitialized_variable_warn",
];

/// Beginnings of such directives. `limit_req_zone` counts requests, and only `limit_req` refuses some.
const HARMLESS_PREFIXES: &[&str] = &[
    "brotli_",
    "geoip_",
    "gzip_",
    "http2_",
    "limit_conn_",
    "limit_req_",
    "lingering_",
    "log_",
    "lua_package_",
    "map_hash_",
    "open_file_cache",
    "opentelemetry",
    "opentracing",
    "proxy_cache_",
    "proxy_headers_hash_",
    "server_names_hash_",
    "ssl_session_",
    "types_hash_",
    "variables_hash_",
];

/// Blocks of values and servers that refuse no requests. A directive that refuses some by these values is not in them.
const HARMLESS_BLOCKS: &[&str] = &[
    "charset_map",
    "geo",
    "geoip2",
    "map",
    "split_clients",
    "types",
    "upstream",
];

/// Directives with which the address of a client is not that of its connection.
const ADDRESS: &[&str] = &["real_ip_header", "real_ip_recursive", "set_real_ip_from"];

/// Reports whether a directive refuses no requests. What is in blocks of a block is not known.
pub(super) fn is_harmless(name: &str, depth: usize) -> bool {
    match depth {
        0 => {
            let mut prefixes = HARMLESS_PREFIXES.iter();
            HARMLESS.contains(&name) || prefixes.any(|prefix| name.starts_with(prefix))
        }
        1 => HARMLESS_BLOCKS.contains(&name),
        _ => false,
    }
}

/// Reports whether a directive changes the address of clients.
pub(super) fn changes_address(name: &str) -> bool {
    ADDRESS.contains(&name)
}
