// Peers holds `cotenant soak` beside AIPerf and GuideLLM as clients: on the same llama-server with the same prompts, in turns, and on
// an endpoint of its own that misbehaves in known ways. It prints Markdown tables.
//
//	go build -o /tmp/cotenant ./cmd/cotenant
//	bench/peers/run.sh /path/to/llama-server SmolLM2-135M-Instruct.Q4_1.gguf /tmp/cotenant
//
// The script installs the two peers, at the versions of clients/loadtest/requirements.txt, and runs this. Their flags are those that make them fit to be
// compared: AIPerf's closed loop spins without a rate, and loses requests on connections that llama-server closes after a stream.
package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"cotenant/internal/loadgen"
)

type options struct {
	llama, model, cotenant, tools, tokenizer, out string
	rounds, requests, threads, base               int
}

func main() {
	var o options
	flag.StringVar(&o.llama, "llama", "", "llama-server binary; empty: only the misbehaving endpoint is asked")
	flag.StringVar(&o.model, "model", "", "GGUF file that it serves")
	flag.StringVar(&o.cotenant, "cotenant", "", "cotenant binary")
	flag.StringVar(&o.tools, "tools", "", "folder with aiperf and guidellm")
	flag.StringVar(&o.tokenizer, "tokenizer", "", "folder with a tokenizer, which AIPerf can't do without")
	flag.StringVar(&o.out, "out", "", "folder for what the clients write; new or empty")
	flag.IntVar(&o.rounds, "rounds", 3, "runs of each client on llama-server")
	flag.IntVar(&o.requests, "requests", 100, "requests of a run")
	flag.IntVar(&o.threads, "threads", 2, "threads of llama-server")
	flag.IntVar(&o.base, "base-tokens", loadgen.DefaultBaseTokens, "about how long the base is that the prompts share")
	flag.Parse()
	if err := run(o); err != nil {
		fmt.Fprintln(os.Stderr, "bench/peers:", err)
		os.Exit(1)
	}
}

func run(o options) error {
	if o.cotenant == "" || o.tools == "" || o.tokenizer == "" || o.out == "" {
		return fmt.Errorf("want --cotenant, --tools, --tokenizer and --out")
	}
	for _, p := range []*string{&o.tokenizer, &o.out, &o.tools, &o.cotenant} {
		var err error
		if *p, err = filepath.Abs(*p); err != nil { // AIPerf reads a relative tokenizer path as a name on the hub
			return err
		}
	}
	if err := os.MkdirAll(o.out, 0o755); err != nil {
		return err
	}
	prompts, err := writePrompts(o.out, o.requests, o.base)
	if err != nil {
		return err
	}
	if o.llama != "" {
		if err := sameEndpoint(o, prompts); err != nil {
			return err
		}
	}
	return misbehaving(o)
}

// sameEndpoint runs each client on a fresh llama-server, round by round.
func sameEndpoint(o options, prompts prompts) error {
	clients := []client{cotenantClient{o}, aiperfClient{o}, guidellmClient{o}}
	results := map[string][]report{}
	for round := range o.rounds {
		for i := range clients {
			c := clients[(i+round)%len(clients)]
			r, err := onLlama(o, c, prompts, filepath.Join(o.out, fmt.Sprintf("llama-%d-%s", round, c.name())))
			if err != nil {
				return fmt.Errorf("%s, round %d: %w", c.name(), round, err)
			}
			fmt.Fprintf(os.Stderr, "round %d, %s: %+v\n", round, c.name(), r)
			results[c.name()] = append(results[c.name()], r)
		}
	}
	fmt.Printf("### The same llama-server, the same %d prompts, 4 at a time, 8 tokens each\n\n", o.requests)
	fmt.Println("| client | good / bad | results/s | TTFT p50 ms | latency p50 ms | output tokens | client CPU s |")
	fmt.Println("|---|---|---|---|---|---|---|")
	for _, c := range clients {
		rs := results[c.name()]
		fmt.Printf("| %s | %s | %s | %s | %s | %s | %s |\n", c.name(), each(rs, func(r report) string { return fmt.Sprintf("%d / %d", r.good, r.bad) }),
			medians(rs, func(r report) *float64 { return r.rate }), medians(rs, func(r report) *float64 { return r.ttft }),
			medians(rs, func(r report) *float64 { return r.latency }), each(rs, func(r report) string { return number(r.tokens, 0) }),
			medians(rs, func(r report) *float64 { return r.cpu }))
	}
	fmt.Println()
	return nil
}

// each lists what the runs say, once where they agree.
func each(rs []report, f func(report) string) string {
	var out []string
	for _, r := range rs {
		if s := f(r); len(out) == 0 || out[len(out)-1] != s {
			out = append(out, s)
		}
	}
	return strings.Join(out, ", ")
}

// medians gives the median and the range.
func medians(rs []report, f func(report) *float64) string {
	var values []float64
	for _, r := range rs {
		if v := f(r); v != nil {
			values = append(values, *v)
		}
	}
	if len(values) == 0 {
		return "–"
	}
	lo, mid, hi := spread(values)
	return fmt.Sprintf("%s (%s–%s)", number(&mid, 2), number(&lo, 2), number(&hi, 2))
}

func number(v *float64, digits int) string {
	if v == nil {
		return "–"
	}
	if *v >= 100 {
		digits = 0
	}
	return fmt.Sprintf("%.*f", digits, *v)
}
