// Staleserver is a server for tests: it lists a model, and its completions hang or are answered.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
)

func main() {
	mode := flag.String("completions", "hang", "hang, answer or refuse")
	flag.String("api-key", "", "not used: it is there to be masked")
	flag.Parse()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	http.HandleFunc("GET /v1/models", func(w http.ResponseWriter, _ *http.Request) {
		json.NewEncoder(w).Encode(map[string]any{"object": "list", "data": []any{map[string]any{"id": "stale-model"}}})
	})
	http.HandleFunc("POST /v1/completions", func(w http.ResponseWriter, r *http.Request) {
		var body struct {
			Model     string `json:"model"`
			MaxTokens int    `json:"max_tokens"`
		}
		if err := json.NewDecoder(r.Body).Decode(&body); err != nil || body.Model != "stale-model" || body.MaxTokens != 1 {
			http.Error(w, "want one token of stale-model", http.StatusBadRequest)
			return
		}
		switch *mode {
		case "hang":
			<-r.Context().Done()
		case "refuse":
			http.Error(w, "no", http.StatusServiceUnavailable)
		default:
			json.NewEncoder(w).Encode(map[string]any{"choices": []any{map[string]any{"text": "x"}}})
		}
	})
	fmt.Println(l.Addr())
	panic(http.Serve(l, nil))
}
