// Cpu measures the CPU engine beside llama.cpp on one machine, in one run: prefill, decode alone and at four streams on the
// bare engines, and the main job (about 704 prompt tokens and 8 new ones, 4 workers) over HTTP. It prints a Markdown table of medians
// with ratios, and the floors.
//
//	go build -o /tmp/cotenant ./cmd/cotenant
//	go run ./bench/cpu --model SmolLM2-135M-Instruct.Q4_1.gguf --cotenant /tmp/cotenant --llama llama.cpp/build/bin
//
// llama.cpp is built by whoever runs this: targets llama-bench, llama-batched-bench and llama-server, GGML_NATIVE=ON. The two
// take turns, repeat by repeat, so that a change of the machine's speed meets both. Run it on a quiet machine.
package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
)

type options struct {
	model, cotenant, llama string
	threads, repeats       int
	shared, unique         int64
	scratch                string
}

func main() {
	var o options
	flag.StringVar(&o.model, "model", "", "GGUF file that both load")
	flag.StringVar(&o.cotenant, "cotenant", "", "cotenant binary")
	flag.StringVar(&o.llama, "llama", "", "folder with llama-bench, llama-batched-bench and llama-server")
	flag.IntVar(&o.threads, "threads", runtime.NumCPU(), "threads of each")
	flag.IntVar(&o.repeats, "repeats", 3, "repeats of each measurement; medians are printed")
	flag.Int64Var(&o.shared, "shared", 100, "requests of the main job with a shared base")
	flag.Int64Var(&o.unique, "unique", 20, "requests of the main job with unique prompts")
	flag.Parse()
	if err := run(o); err != nil {
		fmt.Fprintln(os.Stderr, "bench/cpu:", err)
		os.Exit(1)
	}
}

// row is one line of the table: a measure of both, higher being better.
type row struct {
	name, unit   string
	ours, theirs []float64
	goal         float64
}

func run(o options) error {
	if o.model == "" || o.cotenant == "" || o.llama == "" {
		return fmt.Errorf("want --model, --cotenant and --llama")
	}
	var err error
	if o.scratch, err = os.MkdirTemp("", "cotenant-bench-"); err != nil {
		return err
	}
	defer os.RemoveAll(o.scratch)
	rows, err := bare(o)
	if err != nil {
		return err
	}
	jobs, notes, err := mainJobs(o)
	if err != nil {
		return err
	}
	printTable(o, append(rows, jobs...), notes)
	return nil
}

func printTable(o options, rows []row, notes []string) {
	fmt.Printf("%s, %d threads, medians of %d (lowest–highest)\n\n", filepath.Base(o.model), o.threads, o.repeats)
	fmt.Println("| what | unit | Cotenant | llama.cpp | ratio | goal |")
	fmt.Println("|---|---|---|---|---|---|")
	for _, r := range rows {
		ratio := median(r.ours) / median(r.theirs)
		verdict := "met"
		if ratio < r.goal {
			verdict = "missed"
		}
		goal := fmt.Sprintf("≥ %.1f, %s", r.goal, verdict)
		if r.goal == 0 {
			goal = "–"
		}
		fmt.Printf("| %s | %s | %s | %s | **%.2f** | %s |\n", r.name, r.unit, spread(r.ours), spread(r.theirs), ratio, goal)
	}
	fmt.Println()
	for _, n := range notes {
		fmt.Println("- " + n)
	}
}

func median(v []float64) float64 {
	s := slices.Clone(v)
	slices.Sort(s)
	if len(s)%2 == 0 {
		return (s[len(s)/2-1] + s[len(s)/2]) / 2
	}
	return s[len(s)/2]
}

func spread(v []float64) string {
	format := "%.1f"
	if median(v) < 10 {
		format = "%.2f"
	}
	return fmt.Sprintf(strings.ReplaceAll("F (F–F)", "F", format), median(v), slices.Min(v), slices.Max(v))
}
