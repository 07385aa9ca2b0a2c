// Package topology reads the operator's declaration of hosts and GPU roles and binds the roles to observed GPUs by UUID. A
// topology file is TOML, versioned, and only read: nothing observed is ever written into one. docs/formats/topology.md is the
// format.
package topology

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/pelletier/go-toml/v2"
)

// SchemaVersion is the version of the format that this package reads.
const SchemaVersion = 1

// maxFile is the size of the largest topology file that is read, in bytes.
const maxFile = 1 << 20

// Topology is a topology file.
type Topology struct {
	Hosts  []Host // by name
	SHA256 string // of the file
}

// Host is one declared host.
type Host struct {
	Name string
	GPUs []Role // in the file's order
}

// Role is a name that the operator gives to one GPU, or one MIG device, by its UUID.
type Role struct {
	Name string
	UUID string // "GPU-…" or "MIG-…", hexadecimal digits in lower case
	// Model, where not empty, is a part of the product name that the GPU is expected to have.
	Model string
	Path  string // of the role's table in the file, such as "hosts.primary.gpus[0]"
}

// Error says what is wrong in a topology file, and where.
type Error struct {
	Path string // of the field, such as "hosts.primary.gpus[1].uuid"; empty where the file is no TOML
	What string
	Line int // of a syntax error, from 1; 0 where only the path is known
}

func (e *Error) Error() string {
	switch {
	case e.Path != "":
		return e.Path + ": " + e.What
	case e.Line > 0:
		return fmt.Sprintf("line %d: %s", e.Line, e.What)
	}
	return e.What
}

// Read reads a topology file. What is wrong in the file is an *Error.
func Read(path string) (*Topology, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("reading topology: %w", err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return nil, fmt.Errorf("reading topology: %w", err)
	}
	t, err := Parse(data)
	if err != nil {
		return nil, fmt.Errorf("topology %s: %w", path, err)
	}
	return t, nil
}

// Parse reads the bytes of a topology file. It accepts no field that the format doesn't have.
func Parse(data []byte) (*Topology, error) {
	if len(data) > maxFile {
		return nil, &Error{What: fmt.Sprintf("larger than %d bytes", maxFile)}
	}
	if !utf8.Valid(data) {
		return nil, &Error{What: "not UTF-8"}
	}
	var doc map[string]any
	if err := toml.Unmarshal(data, &doc); err != nil {
		bad := &Error{What: strings.TrimPrefix(err.Error(), "toml: ")}
		var de *toml.DecodeError
		if errors.As(err, &de) {
			bad.Line, _ = de.Position()
		}
		return nil, bad
	}
	d := &decoder{}
	t := d.topology(doc)
	if d.err != nil {
		return nil, d.err
	}
	t.SHA256 = fmt.Sprintf("%x", sha256.Sum256(data))
	return t, nil
}

// decoder walks the document and keeps the first error.
type decoder struct{ err *Error }

func (d *decoder) fail(path, format string, args ...any) {
	if d.err == nil {
		d.err = &Error{Path: path, What: fmt.Sprintf(format, args...)}
	}
}

// keys refuses a table's fields that the format doesn't have, in sorted order so that the first error is always the same.
func (d *decoder) keys(path string, table map[string]any, known ...string) {
	for _, k := range sortedKeys(table) {
		if slices.Contains(known, k) {
			continue
		}
		at := join(path, k)
		switch {
		case isSecretName(k):
			d.fail(at, "looks like a secret; a topology file is not the place for one")
		case isRuntimeName(k):
			d.fail(at, "is runtime state; a topology file declares what should be, and nothing observed is written into it")
		default:
			d.fail(at, "no such field; known here: %s", strings.Join(known, ", "))
		}
	}
}

func (d *decoder) topology(doc map[string]any) *Topology {
	// The version comes first: a file of another version may have other fields.
	v, ok := doc["schema_version"].(int64)
	switch {
	case doc["schema_version"] == nil:
		d.fail("schema_version", "missing; this program reads version %d", SchemaVersion)
	case !ok:
		d.fail("schema_version", "want an integer")
	case v != SchemaVersion:
		d.fail("schema_version", "version %d, this program reads version %d", v, SchemaVersion)
	}
	d.keys("", doc, "schema_version", "hosts")
	hosts, ok := doc["hosts"].(map[string]any)
	if doc["hosts"] != nil && !ok {
		d.fail("hosts", "want tables [hosts.NAME]")
	}
	if len(hosts) == 0 {
		d.fail("hosts", "no host is declared; want a table [hosts.NAME]")
	}
	t := &Topology{}
	owner := make(map[string]string) // UUID → path of the role that has it
	for _, name := range sortedKeys(hosts) {
		at := join("hosts", name)
		table, ok := hosts[name].(map[string]any)
		if !ok {
			d.fail(at, "want a table")
			break
		}
		if why := badName(name); why != "" {
			d.fail(at, "host name %s", why)
		}
		t.Hosts = append(t.Hosts, d.host(at, name, table, owner))
	}
	return t
}

func (d *decoder) host(path, name string, table map[string]any, owner map[string]string) Host {
	d.keys(path, table, "gpus")
	h := Host{Name: name}
	list, ok := table["gpus"].([]any)
	if table["gpus"] != nil && !ok {
		d.fail(join(path, "gpus"), "want an array of tables [[%s.gpus]]", path)
	}
	if len(list) == 0 {
		d.fail(join(path, "gpus"), "no GPU is declared; want [[%s.gpus]] with role and uuid", path)
	}
	roles := make(map[string]string)
	for i, entry := range list {
		at := fmt.Sprintf("%s.gpus[%d]", path, i)
		table, ok := entry.(map[string]any)
		if !ok {
			d.fail(at, "want a table with role and uuid")
			return h
		}
		r := d.role(at, table)
		if first, taken := roles[r.Name]; taken && r.Name != "" {
			d.fail(at+".role", "%q is already the role of %s", r.Name, first)
		}
		if first, taken := owner[r.UUID]; taken && r.UUID != "" {
			d.fail(at+".uuid", "duplicate: %s has the same UUID", first)
		}
		roles[r.Name], owner[r.UUID] = at, at
		h.GPUs = append(h.GPUs, r)
	}
	return h
}

func (d *decoder) role(path string, table map[string]any) Role {
	d.keys(path, table, "role", "uuid", "model")
	r := Role{Path: path, Name: d.text(path, table, "role", true), Model: d.text(path, table, "model", false)}
	uuid := d.text(path, table, "uuid", true)
	if why := badName(r.Name); why != "" && r.Name != "" {
		d.fail(path+".role", "role %s", why)
	}
	if uuid != "" {
		var err error
		if r.UUID, err = ParseUUID(uuid); err != nil {
			d.fail(path+".uuid", "%v", err)
		}
	}
	return r
}

// text returns a string field. A required one must be there and not empty.
func (d *decoder) text(path string, table map[string]any, key string, required bool) string {
	at := join(path, key)
	v, present := table[key]
	s, ok := v.(string)
	switch {
	case !present && required:
		d.fail(at, "missing")
	case !present:
	case !ok:
		d.fail(at, "want a string")
	case strings.TrimSpace(s) == "":
		d.fail(at, "empty")
	case isSecretValue(s):
		d.fail(at, "the value looks like a secret; a topology file is not the place for one")
	}
	return s
}

func sortedKeys(m map[string]any) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// join makes a field's path; a key that isn't bare in TOML is quoted.
func join(path, key string) string {
	for _, r := range key {
		if !(r == '-' || r == '_' || r >= '0' && r <= '9' || r >= 'A' && r <= 'Z' || r >= 'a' && r <= 'z') {
			key = fmt.Sprintf("%q", key)
			break
		}
	}
	if key == "" {
		key = `""`
	}
	if path == "" {
		return key
	}
	return path + "." + key
}
