;; A component for tests. Its functions are told apart by their first letter:
;; echo, fail, garbage, loop, more (memory), trap, directories (how many it may use), and keep (137 MiB of memory).
(component
  (import "wasi:filesystem/types@0.2.0" (instance $types
    (export "descriptor" (type (sub resource)))))
  (alias export $types "descriptor" (type $descriptor))
  (import "wasi:filesystem/preopens@0.2.0" (instance $preopens
    (alias outer 1 $descriptor (type $outer))
    (export "descriptor" (type $own (eq $outer)))
    (export "get-directories" (func (result (list (tuple (own $own) string)))))))

  (core module $libc
    (memory (export "memory") 1)
    (global $next (mut i32) (i32.const 4096))
    (func (export "reset") (global.set $next (i32.const 4096)))
    (func (export "realloc") (param $old i32) (param $was i32) (param $align i32) (param $size i32) (result i32)
      (local $at i32)
      (local.set $at (i32.and (i32.add (global.get $next) (i32.const 7)) (i32.const -8)))
      (global.set $next (i32.add (local.get $at) (local.get $size)))
      (block $enough
        (br_if $enough (i32.le_u (global.get $next) (i32.mul (memory.size) (i32.const 65536))))
        (drop (memory.grow (i32.add (i32.const 1) (i32.div_u (local.get $size) (i32.const 65536))))))
      (local.get $at)))
  (core instance $libc (instantiate $libc))
  (core func $get-directories
    (canon lower (func $preopens "get-directories") (memory (core memory $libc "memory")) (realloc (core func $libc "realloc"))))

  (core module $main
    (import "libc" "memory" (memory 1))
    (import "libc" "reset" (func $reset))
    (import "wasi" "get-directories" (func $get-directories (param i32)))
    (data (i32.const 100) "{\"functions\":[{\"name\":\"echo\",\"description\":\"Says it again.\"},{\"name\":\"fail\"}]}")
    (data (i32.const 300) "no luck")
    (func $text (param $at i32) (param $length i32) (result i32)
      (i32.store (i32.const 0) (local.get $at))
      (i32.store (i32.const 4) (local.get $length))
      (i32.const 0))
    (func $answer (param $is-error i32) (param $at i32) (param $length i32) (result i32)
      (i32.store8 (i32.const 16) (local.get $is-error))
      (i32.store (i32.const 20) (local.get $at))
      (i32.store (i32.const 24) (local.get $length))
      (i32.const 16))
    (func (export "describe") (result i32) (call $text (i32.const 100) (i32.const 78)))
    (func (export "call") (param $name i32) (param $named i32) (param $input i32) (param $length i32) (result i32)
      (local $letter i32)
      (local.set $letter (i32.load8_u (local.get $name)))
      (if (i32.eq (local.get $letter) (i32.const 102)) ;; f
        (then (return (call $answer (i32.const 1) (i32.const 300) (i32.const 7)))))
      (if (i32.eq (local.get $letter) (i32.const 103)) ;; g
        (then (return (call $answer (i32.const 0) (i32.const 300) (i32.const 7)))))
      (if (i32.eq (local.get $letter) (i32.const 108)) ;; l
        (then (loop $for-ever (br $for-ever))))
      (if (i32.eq (local.get $letter) (i32.const 109)) ;; m
        (then
          (loop $more
            (br_if $more (i32.ne (memory.grow (i32.const 16)) (i32.const -1))))
          (unreachable)))
      (if (i32.eq (local.get $letter) (i32.const 107)) ;; k
        (then (drop (memory.grow (i32.const 2200)))))
      (if (i32.eq (local.get $letter) (i32.const 116)) ;; t
        (then (unreachable)))
      (if (i32.eq (local.get $letter) (i32.const 100)) ;; d
        (then
          (call $get-directories (i32.const 32))
          (i32.store8 (i32.const 40) (i32.add (i32.const 48) (i32.load (i32.const 36))))
          (return (call $answer (i32.const 0) (i32.const 40) (i32.const 1)))))
      (call $answer (i32.const 0) (local.get $input) (local.get $length)))
    (func (export "done") (param i32) (call $reset)))
  (core instance $main (instantiate $main
    (with "libc" (instance $libc))
    (with "wasi" (instance (export "get-directories" (func $get-directories))))))

  (func (export "describe") (result string)
    (canon lift (core func $main "describe") (memory (core memory $libc "memory")) (realloc (core func $libc "realloc"))
      (post-return (core func $main "done"))))
  (func (export "call") (param "function" string) (param "input" string) (result (result string (error string)))
    (canon lift (core func $main "call") (memory (core memory $libc "memory")) (realloc (core func $libc "realloc"))
      (post-return (core func $main "done")))))
