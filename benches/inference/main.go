// What surrounds a proxy in front of a pool of model servers: an endpoint picker, model servers, and clients of both.
package main

import (
	"encoding/json"
	"log"
	"os"
)

func main() {
	log.SetFlags(0)
	roles := map[string]func([]string) error{
		"picker":  picker,
		"model":   model,
		"load":    load,
		"first":   first,
		"streams": streams,
	}
	if len(os.Args) < 2 || roles[os.Args[1]] == nil {
		log.Fatal("usage: inference picker|model|load|first|streams FLAGS")
	}
	if err := roles[os.Args[1]](os.Args[2:]); err != nil {
		log.Fatal(err)
	}
}

// printed writes the results of a client as one line.
func printed(results any) error {
	return json.NewEncoder(os.Stdout).Encode(results)
}
