// A capsule: one process answers all calls, and keeps its state between them.
//
// It speaks MCP over its standard input and output, a message of JSON on each line. Standard error
// is the log. With a second tool in tools, they are served as __NAME____TOOL.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"os"
)

type object = map[string]any

var tools = []object{{
	"name":        "__NAME__",
	"description": "Adds to a total that is kept between calls.",
	"inputSchema": object{
		"type":       "object",
		"properties": object{"by": object{"type": "integer", "description": "What to add; 1 if absent"}},
	},
}}

var total int64

func call(tool string, arguments json.RawMessage) (any, error) {
	given := struct{ By int64 }{By: 1}
	if err := json.Unmarshal(arguments, &given); len(arguments) > 0 && err != nil {
		return nil, err
	}
	total += given.By
	text := object{"type": "text", "text": fmt.Sprintf("The total is %d.", total)}
	return object{"content": []object{text}, "structuredContent": object{"total": total}}, nil
}

type request struct {
	ID     json.RawMessage
	Method string
	Params struct {
		ProtocolVersion string
		Name            string
		Arguments       json.RawMessage
	}
}

func answer(r request) (any, error) {
	switch r.Method {
	case "initialize":
		info := object{"name": "__NAME__", "version": "0.1.0"}
		return object{"protocolVersion": r.Params.ProtocolVersion, "capabilities": object{"tools": object{}}, "serverInfo": info}, nil
	case "tools/list":
		return object{"tools": tools}, nil
	case "tools/call":
		return call(r.Params.Name, r.Params.Arguments)
	case "ping":
		return object{}, nil
	}
	return nil, fmt.Errorf("no method %s", r.Method)
}

func main() {
	in, out := json.NewDecoder(bufio.NewReader(os.Stdin)), json.NewEncoder(os.Stdout)
	out.Encode(object{"jsonrpc": "2.0", "method": "orla.hello",
		"params": object{"name": "__NAME__", "version": "0.1.0", "capabilities": []string{"tools"}}})
	for {
		var r request
		if err := in.Decode(&r); err == io.EOF {
			return // orla closed standard input
		} else if err != nil {
			log.Fatal(err)
		}
		if r.ID == nil {
			continue // a notification: nobody waits for an answer
		}
		message := object{"jsonrpc": "2.0", "id": r.ID}
		if result, err := answer(r); err == nil {
			message["result"] = result
		} else {
			message["error"] = object{"code": -32601, "message": err.Error()}
		}
		out.Encode(message)
	}
}
