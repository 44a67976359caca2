// The health checks of Argo CD: reads an object in JSON from each line, runs the Lua check of its kind on it, and prints the
// result as a line of JSON. With --overrides FILE, checks of that file, JSON by `group/Kind`, win over those of Argo CD, as
// `resource.customizations` does.
package main

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"log"
	"os"
	"strings"

	checks "github.com/argoproj/argo-cd/v3/resource_customizations"
	lua "github.com/yuin/gopher-lua"
)

type health struct {
	Status  string `json:"status"`
	Message string `json:"message"`
}

func main() {
	path := flag.String("overrides", "", "file with checks of one's own")
	flag.Parse()
	overrides := map[string]string{}
	if *path != "" {
		text, err := os.ReadFile(*path)
		if err == nil {
			err = json.Unmarshal(text, &overrides)
		}
		if err != nil {
			log.Fatal(err)
		}
	}
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		var object map[string]any
		if err := json.Unmarshal(lines.Bytes(), &object); err != nil {
			log.Fatal(err)
		}
		found, err := check(object, overrides)
		if err != nil {
			log.Fatal(err)
		}
		line, _ := json.Marshal(found)
		fmt.Println(string(line))
	}
}

func check(object map[string]any, overrides map[string]string) (health, error) {
	group, _, _ := strings.Cut(fmt.Sprint(object["apiVersion"]), "/")
	key := fmt.Sprintf("%s/%s", group, object["kind"])
	script, isOverride := overrides[key]
	if !isOverride {
		script, isOverride = overrides[group+"/*"]
	}
	if !isOverride {
		text, err := checks.Embedded.ReadFile(key + "/health.lua")
		if err != nil {
			// Argo CD takes an object without a check for healthy.
			return health{Status: "none"}, nil
		}
		script = string(text)
	}
	// Argo CD opens all libraries for its own checks only.
	state := lua.NewState(lua.Options{SkipOpenLibs: isOverride})
	defer state.Close()
	if isOverride {
		for name, open := range map[string]lua.LGFunction{lua.BaseLibName: lua.OpenBase, lua.TabLibName: lua.OpenTable} {
			state.Push(state.NewFunction(open))
			state.Push(lua.LString(name))
			state.Call(1, 0)
		}
	}
	state.SetGlobal("obj", value(state, object))
	if err := state.DoString(script); err != nil {
		return health{}, fmt.Errorf("%s: %w", key, err)
	}
	table, isTable := state.Get(-1).(*lua.LTable)
	if !isTable {
		return health{}, fmt.Errorf("%s returns no table", key)
	}
	text := func(name string) string { return lua.LVAsString(table.RawGetString(name)) }
	return health{Status: text("status"), Message: text("message")}, nil
}

func value(state *lua.LState, from any) lua.LValue {
	switch from := from.(type) {
	case bool:
		return lua.LBool(from)
	case float64:
		return lua.LNumber(from)
	case string:
		return lua.LString(from)
	case []any:
		table := state.NewTable()
		for _, item := range from {
			table.Append(value(state, item))
		}
		return table
	case map[string]any:
		table := state.NewTable()
		for name, item := range from {
			table.RawSetString(name, value(state, item))
		}
		return table
	}
	return lua.LNil
}
