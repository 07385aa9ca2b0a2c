package publish

import (
	"cmp"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"
)

// Kinds of replacements, with the word that their labels start with.
const (
	kindGPU     = "gpu_uuid"
	kindMIG     = "mig_uuid"
	kindUUID    = "uuid"
	kindHost    = "host_name"
	kindPath    = "path"
	kindAddress = "address"
)

var labelWords = map[string]string{kindGPU: "GPU", kindMIG: "MIG", kindUUID: "uuid", kindHost: "host", kindPath: "path", kindAddress: "address"}

var (
	// A text that was cut, and MPS's tables, hold only the beginning of a UUID.
	deviceForm  = regexp.MustCompile(`\b(GPU|MIG)-[0-9a-fA-F]{4,8}(?:-[0-9a-fA-F]{0,12}){0,4}\b`)
	uuidForm    = regexp.MustCompile(`\b[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\b`)
	urlForm     = regexp.MustCompile(`\b[a-zA-Z][a-zA-Z0-9+.-]*://[^\s"'<>]+`)
	mailForm    = regexp.MustCompile(`\b[\w.+-]+@[\w-]+(?:\.[\w-]+)*`)
	macForm     = regexp.MustCompile(`\b(?:[0-9a-fA-F]{2}[:-]){5}[0-9a-fA-F]{2}\b`)
	ipv4Form    = regexp.MustCompile(`(?:^|[^\w.-])((?:\d{1,3}\.){3}\d{1,3})(?:[^\w.-]|\.?$)`)
	ipv6Form    = regexp.MustCompile(`(?:^|[^\w:.])([0-9a-fA-F:]*:[0-9a-fA-F:]*:[0-9a-fA-F:.]*)`)
	pathForm    = regexp.MustCompile(`(?:^|[\s"'(=,:;<>|\[])(/[^\s"'(),;:<>|\]]+)`)
	labelForm   = regexp.MustCompile(`^(GPU|MIG|uuid|host|path|address)-\d+$`)
	windowsForm = regexp.MustCompile(`\b[A-Za-z]:\\[^\s"'<>|]+`)
)

// publicPaths are where every installation has its files. An entry that ends in a slash is a folder.
var publicPaths = []string{
	"/proc/", "/sys/", "/dev/", "/usr/lib/", "/usr/lib64/", "/lib/", "/lib64/", "/usr/local/cuda", "/usr/local/nvidia/", "/etc/cdi", "/var/run/cdi", "/run/cdi",
	"/etc/nvidia-container-runtime/", "/etc/nv_tegra_release", "/etc/ld.so.preload", "/run/nvidia", "/var/run/docker.sock", "/run/docker.sock", "/.dockerenv", "/run/.containerenv",
	"/run/systemd/", "/.singularity.d", "/usr/bin/nvidia-", "/usr/bin/python3", "/usr/local/bin/python3", "/usr/lib/xorg/", "/usr/local/lib/python3", "/opt/conda/lib/python3",
	"/tmp/nvidia-mps", "/var/log/nvidia-mps", "/run/opengl-driver/", "/run/current-system/sw/bin/nvidia-", "/usr/bin/nvcc",
	"/version", "/info", // requests to the Docker engine
}

// publicPath reports whether a path says nothing of its owner.
func publicPath(p string) bool {
	p = strings.TrimRight(p, ".")
	if p == "/" {
		return true
	}
	// A folder below the home of somebody, or of a site, can lie below a public one by a detour only.
	if strings.Contains(p, "/../") || strings.Contains(p, "/home/") || strings.HasPrefix(p, "/proc/") && strings.Contains(p, "/root/") {
		return false
	}
	for _, known := range publicPaths {
		if p == strings.TrimSuffix(known, "/") || strings.HasPrefix(p, known) && known != "/version" && known != "/info" {
			return true
		}
	}
	return false
}

// redactor replaces and remembers what it replaced.
type redactor struct {
	labels map[string]string       // kind and value → label
	byName map[string]*Replacement // label → what is listed
	counts map[string]int          // kind → labels given
	known  []learned               // values that are replaced wherever they stand, longest first
	hosts  []string
}

// learned is a value of the document whose field says what it is.
type learned struct{ value, kind string }

func newRedactor(o Options) *redactor {
	r := &redactor{labels: make(map[string]string), byName: make(map[string]*Replacement), counts: make(map[string]int)}
	for _, h := range o.HostNames {
		// A name such as "localhost" names nobody; a very short one would be found in other words.
		if h = strings.TrimSpace(h); len(h) > 2 && h != "localhost" && !labelForm.MatchString(h) {
			r.hosts = append(r.hosts, h)
		}
	}
	// A full name goes before the short one that it begins with.
	slices.SortFunc(r.hosts, func(a, b string) int { return cmp.Or(cmp.Compare(len(b), len(a)), cmp.Compare(a, b)) })
	return r
}

// learn finds values by their fields, in the order in which people read the report, so that GPU-1 is the first GPU.
func (r *redactor) learn(doc map[string]any) {
	gpus, _ := doc["gpus"].([]any)
	for _, g := range gpus {
		gpu, _ := g.(map[string]any)
		if uuid, _ := gpu["uuid"].(string); deviceForm.MatchString(uuid) {
			r.device(uuid, "")
		}
		mig, _ := gpu["mig"].(map[string]any)
		devices, _ := mig["devices"].([]any)
		for _, d := range devices {
			device, _ := d.(map[string]any)
			value, _ := device["uuid"].(map[string]any)
			if uuid, _ := value["value"].(string); deviceForm.MatchString(uuid) {
				r.device(uuid, "")
			}
		}
	}
	if topology, ok := doc["topology"].(map[string]any); ok {
		r.learnHosts(topology)
	}
	r.learnPaths(doc)
	slices.SortFunc(r.known, func(a, b learned) int {
		return cmp.Or(cmp.Compare(len(b.value), len(a.value)), cmp.Compare(a.value, b.value))
	})
	r.known = slices.Compact(r.known)
}

// learnHosts takes the hosts of a topology.
func (r *redactor) learnHosts(v any) {
	switch x := v.(type) {
	case map[string]any:
		if host, _ := x["host"].(string); host != "" && !labelForm.MatchString(host) {
			r.known = append(r.known, learned{host, kindHost})
		}
		for _, k := range sortedKeys(x) {
			r.learnHosts(x[k])
		}
	case []any:
		for _, e := range x {
			r.learnHosts(e)
		}
	}
}

// learnPaths takes strings that are a path as a whole, so that one with a space in it is found inside a sentence too.
func (r *redactor) learnPaths(v any) {
	switch x := v.(type) {
	case map[string]any:
		for _, k := range sortedKeys(x) {
			r.learnPaths(x[k])
		}
	case []any:
		for _, e := range x {
			r.learnPaths(e)
		}
	case string:
		p := strings.TrimSuffix(x, " (deleted)")
		if strings.HasPrefix(p, "/") && !publicPath(p) && len(p) > 2 {
			r.known = append(r.known, learned{p, kindPath})
		}
	}
}

// value returns the public form of a value of the document.
func (r *redactor) value(at string, v any) any {
	switch x := v.(type) {
	case map[string]any:
		out := make(map[string]any, len(x))
		for _, k := range sortedKeys(x) {
			name := r.forms(at, k)
			out[name] = r.value(pointer(at, name), x[k])
		}
		return out
	case []any:
		out := make([]any, len(x))
		for i, e := range x {
			out[i] = r.value(pointer(at, fmt.Sprint(i)), e)
		}
		return out
	case string:
		return r.text(at, x)
	}
	return v
}

// text replaces everything private in one string.
func (r *redactor) text(at, s string) string {
	for _, k := range r.known {
		switch {
		case k.kind == kindHost && inTopology(at):
			s = replaceBetween(s, k.value, wordByte, func() string { return r.label(kindHost, k.value, at) })
		case k.kind == kindPath:
			s = replaceBetween(s, k.value, pathByte, func() string { return r.label(kindPath, k.value, at) })
		}
	}
	for _, h := range r.hosts {
		s = replaceBetween(s, h, wordByte, func() string { return r.label(kindHost, h, at) })
	}
	return r.forms(at, s)
}

// inTopology reports whether a place is where a topology's hosts stand, in a report or a probe's folder: a host's name may be a word that
// stands elsewhere as itself.
func inTopology(at string) bool {
	return slices.ContainsFunc([]string{"/topology", "/documents/inspect.json/topology", "/documents/plan.json/role", "/documents/manifest.json/role"},
		func(place string) bool { return strings.HasPrefix(at, place) })
}

// forms replaces what is private by its form.
func (r *redactor) forms(at, s string) string {
	all := func(form *regexp.Regexp, sign string, label func(string) string) {
		if strings.Contains(s, sign) {
			s = form.ReplaceAllStringFunc(s, label)
		}
	}
	group := func(form *regexp.Regexp, sign, kind string, private func(string) bool) {
		if strings.Contains(s, sign) {
			s = replaceGroup(form, s, func(m string) (string, bool) {
				if !private(m) {
					return "", false
				}
				return r.label(kind, m, at), true
			})
		}
	}
	address := func(m string) string { return r.label(kindAddress, m, at) }
	all(urlForm, "://", address)
	all(mailForm, "@", address)
	all(windowsForm, `:\`, func(m string) string { return r.label(kindPath, m, at) })
	group(pathForm, "/", kindPath, func(m string) bool { return !publicPath(m) })
	all(deviceForm, "G", func(m string) string { return r.device(m, at) })
	all(uuidForm, "-", func(m string) string { return r.label(kindUUID, strings.ToLower(m), at) })
	all(macForm, ":", address)
	all(macForm, "-", address)
	if !versionField(at) {
		group(ipv4Form, ".", kindAddress, isAddress)
	}
	group(ipv6Form, ":", kindAddress, isAddress)
	return s
}

// versionField reports whether a field holds a version: one of four numbers has the form of an address.
func versionField(at string) bool {
	field := at[strings.LastIndexByte(at, '/')+1:]
	return strings.Contains(field, "version") || strings.Contains(field, "release")
}

// isAddress reports whether a text is an address of a machine. The unspecified and the loopback address name none.
func isAddress(s string) bool {
	a, err := netip.ParseAddr(strings.TrimRight(s, ".:"))
	return err == nil && !a.IsUnspecified() && !a.IsLoopback()
}

// device labels a GPU or MIG UUID. A part of a UUID gets the label of the one UUID that begins with it.
func (r *redactor) device(text, at string) string {
	kind, prefix := kindGPU, "GPU-"
	if strings.HasPrefix(text, "MIG-") {
		kind, prefix = kindMIG, "MIG-"
	}
	value := prefix + strings.ToLower(strings.TrimRight(text[len(prefix):], "-"))
	if len(value) < len("GPU-00000000-0000-0000-0000-000000000000") {
		match := ""
		for key := range r.labels {
			full, ok := strings.CutPrefix(key, kind+" ")
			if ok && len(full) > len(value) && strings.HasPrefix(full, value) {
				if match != "" {
					match = ""
					break
				}
				match = full
			}
		}
		value = cmp.Or(match, value)
	}
	return r.label(kind, value, at)
}

// label returns the label of a value and counts the place; at is empty where it is only being learned.
func (r *redactor) label(kind, value, at string) string {
	key := kind + " " + value
	label, ok := r.labels[key]
	if !ok {
		r.counts[kind]++
		label = fmt.Sprintf("%s-%d", labelWords[kind], r.counts[kind])
		r.labels[key] = label
		r.byName[label] = &Replacement{Label: label, Kind: kind, Where: []string{}}
	}
	if at != "" {
		x := r.byName[label]
		x.Count++
		if !slices.Contains(x.Where, at) {
			x.Where = append(x.Where, at)
		}
	}
	return label
}

// list returns what was replaced, by kind and label.
func (r *redactor) list() []Replacement {
	list := make([]Replacement, 0, len(r.byName))
	for _, x := range r.byName {
		if x.Count == 0 {
			continue
		}
		slices.Sort(x.Where)
		x.Where = x.Where[:min(len(x.Where), maxWhere)]
		list = append(list, *x)
	}
	slices.SortFunc(list, func(a, b Replacement) int {
		return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(len(a.Label), len(b.Label)), cmp.Compare(a.Label, b.Label))
	})
	return list
}

// clean is the second look: whether a finished document holds nothing that would be replaced.
func (r *redactor) clean(doc any) bool {
	again := &redactor{labels: make(map[string]string), byName: make(map[string]*Replacement), counts: make(map[string]int), known: r.known, hosts: r.hosts}
	again.value("", doc)
	return len(again.labels) == 0
}

// replaceBetween replaces a text where no byte of its own kind stands before or after it.
func replaceBetween(s, text string, own func(byte) bool, with func() string) string {
	var out strings.Builder
	for last := byte(' '); ; {
		i := strings.Index(s, text)
		if i < 0 {
			out.WriteString(s)
			return out.String()
		}
		if i > 0 {
			last = s[i-1]
		}
		end := i + len(text)
		out.WriteString(s[:i])
		if own(last) || end < len(s) && own(s[end]) {
			out.WriteString(text)
		} else {
			out.WriteString(with())
		}
		last, s = text[len(text)-1], s[end:]
	}
}

func pathByte(b byte) bool {
	return wordByte(b) || b == '/' || b == '.' || b == '+' || b == '@' || b == '~'
}

func wordByte(b byte) bool {
	return b == '-' || b == '_' || b >= '0' && b <= '9' || b >= 'a' && b <= 'z' || b >= 'A' && b <= 'Z'
}

// replaceGroup replaces the first group of each match; with says by what, and whether.
func replaceGroup(form *regexp.Regexp, s string, with func(string) (string, bool)) string {
	var out strings.Builder
	last := 0
	for start := 0; ; {
		m := form.FindStringSubmatchIndex(s[start:])
		if m == nil {
			out.WriteString(s[last:])
			return out.String()
		}
		from, to := start+m[2], start+m[3]
		if label, ok := with(s[from:to]); ok {
			out.WriteString(s[last:from])
			out.WriteString(label)
			last = to
		}
		// What ends one match may begin the next.
		start = max(to, start+1)
		if start >= len(s) {
			out.WriteString(s[last:])
			return out.String()
		}
	}
}

func sortedKeys(m map[string]any) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
