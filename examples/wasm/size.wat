;; A plugin as a component that is written by hand, so that no compiler is needed:
;;   wasm-tools parse examples/wasm/size.wat -o examples/wasm/size.wasm
;; It says how many bytes its input has.
(component
  (core module $main
    (memory (export "memory") 1)
    (global $free (mut i32) (i32.const 1024))
    (data (i32.const 64) "{\"functions\":[{\"name\":\"size\",\"description\":\"Says how many bytes its input has.\"}]}")
    ;; Memory for what comes in: all of it is free again after a call.
    (func (export "realloc") (param i32 i32 i32) (param $size i32) (result i32)
      (local $at i32)
      (local.set $at (global.get $free))
      (global.set $free (i32.add (local.get $at) (i32.and (i32.add (local.get $size) (i32.const 7)) (i32.const -8))))
      (local.get $at))
    (func (export "describe") (result i32)
      (i32.store (i32.const 0) (i32.const 64))
      (i32.store (i32.const 4) (i32.const 82))
      (i32.const 0))
    ;; The digits of the input's length, written from behind.
    (func (export "call") (param i32 i32 i32) (param $rest i32) (result i32)
      (local $at i32)
      (local.set $at (i32.const 64))
      (loop $next
        (local.set $at (i32.sub (local.get $at) (i32.const 1)))
        (i32.store8 (local.get $at) (i32.add (i32.const 48) (i32.rem_u (local.get $rest) (i32.const 10))))
        (br_if $next (local.tee $rest (i32.div_u (local.get $rest) (i32.const 10)))))
      (i32.store8 (i32.const 16) (i32.const 0)) ;; not an error
      (i32.store (i32.const 20) (local.get $at))
      (i32.store (i32.const 24) (i32.sub (i32.const 64) (local.get $at)))
      (i32.const 16))
    (func (export "done") (param i32) (global.set $free (i32.const 1024))))
  (core instance $it (instantiate $main))
  (func (export "describe") (result string)
    (canon lift (core func $it "describe") (memory (core memory $it "memory")) (post-return (core func $it "done"))))
  (func (export "call") (param "function" string) (param "input" string) (result (result string (error string)))
    (canon lift (core func $it "call") (memory (core memory $it "memory")) (realloc (core func $it "realloc"))
      (post-return (core func $it "done")))))
