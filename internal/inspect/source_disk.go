package inspect

import (
	"bufio"
	"context"
	"encoding/json"
	"path"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/pelletier/go-toml/v2"
	"go.yaml.in/yaml/v3"

	"cotenant/internal/bounded"
	"cotenant/internal/observe"
)

// maxSpecs bounds how many specification files are read.
const maxSpecs = 64

// cdi reads the specifications of the Container Device Interface, which are YAML or JSON.
func cdi(t tree, os string) CDI {
	c := CDI{Specs: []CDISpec{}}
	if notLinux(&c.Source, os) {
		return c
	}
	var files []string
	for _, dir := range []string{"/etc/cdi", "/var/run/cdi", "/run/cdi"} {
		// /var/run is /run on most systems: the same file counts once.
		if dir == "/run/cdi" && sameFile(t, "/var/run", "/run") {
			continue
		}
		for _, ext := range []string{"yaml", "yml", "json"} {
			files = append(files, t.glob(dir+"/*."+ext)...)
		}
	}
	if len(files) == 0 {
		c.end(observe.Unavailable, "no specification in /etc/cdi or /var/run/cdi")
		return c
	}
	for _, f := range files[:min(len(files), maxSpecs)] {
		spec, relevant := readCDI(t, f)
		if !relevant {
			continue
		}
		c.Specs = append(c.Specs, spec)
		text := spec.Kind + " " + spec.Version + ": " + strings.Join(spec.Devices, " ")
		if spec.Reason != "" {
			text = spec.Reason
		}
		c.add(said(f, text))
	}
	c.end(observe.SupportedProven, "")
	if len(c.Specs) == 0 {
		c.end(observe.Unavailable, "no specification names NVIDIA")
	}
	return c
}

func sameFile(t tree, a, b string) bool {
	return t.link(a) == b || t.link(a) == path.Join("..", b) || t.link(a) == strings.TrimPrefix(b, "/")
}

func readCDI(t tree, file string) (spec CDISpec, relevant bool) {
	spec = CDISpec{Path: file, Devices: []string{}}
	text, err := t.read(file)
	if err != nil {
		_, spec.Reason = statusOf(err)
		return spec, true
	}
	// Names may be written as bare numbers.
	var doc struct {
		Version string `yaml:"cdiVersion"`
		Kind    string `yaml:"kind"`
		Devices []struct {
			Name yaml.Node `yaml:"name"`
		} `yaml:"devices"`
	}
	if err := yaml.Unmarshal([]byte(text), &doc); err != nil {
		spec.Reason = "malformed: " + observe.Clip(err.Error())
		return spec, strings.Contains(strings.ToLower(path.Base(file)+text), "nvidia")
	}
	spec.Kind, spec.Version = observe.Clip(doc.Kind), observe.Clip(doc.Version)
	for _, d := range doc.Devices {
		spec.Devices = append(spec.Devices, observe.Clip(d.Name.Value))
	}
	slices.Sort(spec.Devices)
	return spec, strings.Contains(doc.Kind, "nvidia") || strings.Contains(strings.ToLower(text), "nvidia")
}

// toolkitPrograms are NVIDIA's container toolkit's.
var toolkitPrograms = []string{"nvidia-container-runtime", "nvidia-container-runtime-hook", "nvidia-ctk", "nvidia-container-cli"}

var dotted = regexp.MustCompile(`\d+\.\d+(\.\d+)*([-.~+][0-9A-Za-z.]+)?`)

func containerToolkit(ctx context.Context, t tree, os string, env []string, timeout time.Duration) ContainerToolkit {
	c := ContainerToolkit{Programs: make(map[string]string)}
	if notLinux(&c.Source, os) {
		return c
	}
	for _, name := range toolkitPrograms {
		if p := t.program(env, name, "/usr/bin", "/usr/local/nvidia/toolkit"); p != "" {
			c.Programs[name] = t.shown(p)
			c.add(said(name, t.shown(p)))
			if name == "nvidia-ctk" {
				r := bounded.Run(ctx, bounded.Command{Path: p, Args: []string{"--version"}, Env: env, Timeout: timeout})
				c.add(returned("nvidia-ctk --version", int32(r.ExitCode), r.Text()))
				c.Version = dotted.FindString(r.Text())
			}
		}
	}
	const config = "/etc/nvidia-container-runtime/config.toml"
	if text, err := t.read(config); err == nil {
		var doc struct {
			Runtime struct {
				Mode string `toml:"mode"`
			} `toml:"nvidia-container-runtime"`
		}
		if err := toml.Unmarshal([]byte(text), &doc); err != nil {
			c.add(said(config, "malformed: "+err.Error()))
		} else {
			c.Mode = observe.Clip(doc.Runtime.Mode)
			c.add(said(config, "mode "+c.Mode))
		}
	}
	c.end(observe.SupportedProven, "")
	if len(c.Programs) == 0 {
		c.end(observe.Unavailable, "nvidia-container-runtime is not on PATH or in the usual folders")
	}
	return c
}

var nvccRelease = regexp.MustCompile(`(?i)release \d+\.\d+, V(\d+\.\d+\.\d+)`)

// nvcc reads version.json of toolkit folders and asks the compiler for its version.
func nvcc(ctx context.Context, t tree, os string, env []string, timeout time.Duration) NVCC {
	n := NVCC{Toolkits: []CUDAToolkit{}}
	if os != "linux" && os != "windows" {
		notLinux(&n.Source, os)
		return n
	}
	for _, f := range t.glob("/usr/local/cuda*/version.json") {
		text, err := t.read(f)
		if err != nil {
			continue
		}
		var doc map[string]struct{ Version string }
		if json.Unmarshal([]byte(text), &doc) != nil || doc["cuda"].Version == "" {
			n.add(said(f, "malformed"))
			continue
		}
		tk := CUDAToolkit{Path: path.Dir(f), Version: observe.Clip(doc["cuda"].Version)}
		// /usr/local/cuda is a link to one of the others.
		if t.link(tk.Path) == "" {
			n.Toolkits = append(n.Toolkits, tk)
		}
		n.add(said(f, tk.Version))
	}
	name := "nvcc"
	if os == "windows" {
		name = "nvcc.exe"
	}
	p := t.program(env, name, "/usr/local/cuda/bin")
	if p == "" {
		n.end(observe.Unavailable, "no nvcc on PATH or in /usr/local/cuda/bin")
		if len(n.Toolkits) > 0 {
			n.Version = n.Toolkits[0].Version
			n.end(observe.SupportedProven, "")
		}
		return n
	}
	r := bounded.Run(ctx, bounded.Command{Path: p, Args: []string{"--version"}, Env: env, Timeout: timeout})
	n.add(returned("nvcc --version", int32(r.ExitCode), lastLines(r.Text())))
	m := nvccRelease.FindStringSubmatch(r.Text())
	switch {
	case r.Hung():
		n.end(observe.Hung, "nvcc did not answer by the deadline")
	case m == nil:
		n.end(observe.Unknown, "nvcc did not tell its release")
	default:
		n.Version = m[1]
		n.end(observe.SupportedProven, "")
	}
	return n
}

// lastLines leaves out nvcc's copyright.
func lastLines(text string) string {
	if i := strings.Index(text, "Cuda compilation tools"); i >= 0 {
		return text[i:]
	}
	return text
}

// frameworkNames are the distributions looked for, with the file that holds their Green Context support.
var frameworkNames = map[string]string{
	"torch":             "torch/cuda/green_contexts.py",
	"flashinfer":        "flashinfer/green_ctx.py",
	"flashinfer-python": "flashinfer/green_ctx.py",
}

var builtFor = regexp.MustCompile(`(?m)^\s*cuda\s*(?::[^=\n]*)?=\s*['"]([0-9.]+)['"]`)

// frameworks looks for Python packages where interpreters keep them. It runs no Python.
func frameworks(t tree, env []string) Frameworks {
	f := Frameworks{Packages: []Package{}}
	patterns := []string{"/usr/lib/python3*/dist-packages", "/usr/lib/python3*/site-packages", "/usr/local/lib/python3*/dist-packages",
		"/usr/local/lib/python3*/site-packages", "/opt/conda/lib/python3*/site-packages", "/opt/venv/lib/python3*/site-packages", "/opt/conda/envs/*/lib/python3*/site-packages"}
	for _, name := range []string{"VIRTUAL_ENV", "CONDA_PREFIX"} {
		if v, ok := variable(env, name); ok && strings.HasPrefix(v, "/") {
			patterns = append(patterns, v+"/lib/python3*/site-packages")
		}
	}
	if v, ok := variable(env, "HOME"); ok && strings.HasPrefix(v, "/") {
		patterns = append(patterns, v+"/.local/lib/python3*/site-packages")
	}
	seen := make(map[string]bool)
	for _, pattern := range patterns {
		for _, dir := range t.glob(pattern) {
			if seen[dir] {
				continue
			}
			seen[dir] = true
			f.scan(t, dir)
		}
	}
	f.end(observe.SupportedProven, "")
	if len(f.Packages) == 0 {
		f.end(observe.Unavailable, "neither PyTorch nor FlashInfer where Python packages are usually kept")
	}
	return f
}

func (f *Frameworks) scan(t tree, dir string) {
	for _, pattern := range []string{"torch-*.dist-info", "flashinfer*.dist-info"} {
		for _, info := range t.glob(path.Join(dir, pattern)) {
			name, version := metadata(t, info+"/METADATA")
			file, known := frameworkNames[strings.ToLower(name)]
			if !known {
				continue
			}
			p := Package{Name: strings.ToLower(name), Version: version, Path: dir, GreenContexts: t.exists(path.Join(dir, file))}
			if p.Name == "torch" {
				if text, err := t.read(dir + "/torch/version.py"); err == nil {
					if m := builtFor.FindStringSubmatch(text); m != nil {
						p.CUDA = m[1]
					}
				}
			}
			f.Packages = append(f.Packages, p)
			f.add(said(info, p.Name+" "+p.Version), said(path.Join(dir, file), presence(p.GreenContexts)))
		}
	}
}

// metadata reads Name and Version of a distribution's core metadata, an RFC 822 header.
func metadata(t tree, file string) (name, version string) {
	text, err := t.read(file)
	if err != nil {
		return "", ""
	}
	lines := bufio.NewScanner(strings.NewReader(text))
	lines.Buffer(nil, maxFile)
	for lines.Scan() && lines.Text() != "" {
		key, value, _ := strings.Cut(lines.Text(), ":")
		switch key {
		case "Name":
			name = observe.Clip(strings.TrimSpace(value))
		case "Version":
			version = observe.Clip(strings.TrimSpace(value))
		}
	}
	return name, version
}
