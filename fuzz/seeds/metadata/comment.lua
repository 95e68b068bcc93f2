#!/usr/bin/lua
-- First paragraph.
-- Goes on.

-- second
