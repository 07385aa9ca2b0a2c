package inspect

import (
	"fmt"
	"io"
	"strings"

	"cotenant/internal/cuda/query"
	"cotenant/internal/observe"
)

// labelPrefix is the namespace that Node Feature Discovery lets a local feature file use without configuration.
const labelPrefix = "feature.node.kubernetes.io/cotenant-"

// maxLabel is how long a label's value may be.
const maxLabel = 63

// WriteNFD prints labels in the format of Node Feature Discovery's local source, a key=value a line: how many GPUs there are, and
// for each mechanism the verdict where all GPUs have the same ("mixed" else) and on how many it is supported.
func (r *Report) WriteNFD(w io.Writer) error {
	var lines []string
	put := func(name, value string) {
		if value = labelValue(value); value != "" {
			lines = append(lines, labelPrefix+name+"="+value)
		}
	}
	put("gpu.count", fmt.Sprint(len(r.GPUs)))
	put("platform", r.Host.Platform)
	put("driver", first(r.Host.Driver.NVML, r.Host.Driver.SMI).Or(r.Host.Driver.KernelModule))
	if v, ok := first(r.Host.CUDA.Driver, r.Host.CUDA.NVML).Get(); ok {
		put("cuda", query.FormatVersion(v))
	}
	if v, ok := r.Host.MPS.Version.Get(); ok {
		put("mps.control", fmt.Sprint(v))
	}
	for _, m := range Mechanisms() {
		if len(r.GPUs) == 0 {
			break
		}
		status := string(r.GPUs[0].Mechanisms[m].Status)
		supported := 0
		for _, g := range r.GPUs {
			s := g.Mechanisms[m].Status
			if string(s) != status {
				status = "mixed"
			}
			if s == observe.SupportedProven || s == observe.SupportedDeclared {
				supported++
			}
		}
		name := strings.ReplaceAll(m, "_", "-")
		put(name, status)
		put(name+".gpus", fmt.Sprint(supported))
	}
	for _, l := range lines {
		if _, err := fmt.Fprintln(w, l); err != nil {
			return err
		}
	}
	return nil
}

// labelValue brings a text in the form of a Kubernetes label's value: at most 63 of letters, digits, '-', '_' and '.', a letter or
// digit at both ends.
func labelValue(s string) string {
	clean := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("-_.", r) {
			return r
		}
		return '-'
	}, s)
	if len(clean) > maxLabel {
		clean = clean[:maxLabel]
	}
	return strings.Trim(clean, "-_.")
}
