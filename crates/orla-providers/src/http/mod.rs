//! HTTP APIs as providers (RTFS capability system §3.3).
