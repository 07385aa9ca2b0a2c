package ledger

import (
	"bytes"
	"encoding/json"
	"flag"
	"go/ast"
	goparser "go/parser"
	"go/token"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"cotenant/internal/loadgen"
)

var update = flag.Bool("update", false, "write docs/formats/*.schema.json from the types")

// The published schemas and the types that they describe.
var schemas = []struct {
	name string
	doc  any
}{{"config", Config{}}, {"row", Row{}}, {"resource", Resource{}}, {"event", Event{}}, {"ledger", Ledger{}}, {"published", Published{}}, {"sampled_row", SampledRow{}}}

// closed lists the members whose strings come from a closed list.
var closed = map[string][]string{
	"Row.outcome": outcomeNames(), "OutcomeCount.outcome": outcomeNames(), "Row.oracle": {OraclePass, OracleFail, OracleNone},
	"Event.kind": EventKinds(), "SeriesReading.state": {SeriesValue, SeriesNaN, SeriesNotExposed, SeriesError},
	"SeriesReading.name": SeriesNames(), "SeriesSummary.name": SeriesNames(), "Reconciliation.quantity": SeriesNames(),
	"Ledger.status": {StatusFinished, StatusInterrupted, StatusFailed}, "Admission.why[]": AdmissionCodes(),
	"Quantile.evidence": {EvidenceBound, EvidenceMaximum, EvidenceSample, EvidenceInfinite, EvidenceNone},
	"Config.operation":  {Operation}, "Ledger.operation": {Operation}, "Config.document": {"config"}, "Ledger.document": {"ledger"},
	"Config.contract": Contracts(), "Ledger.contract": Contracts(), "FaultCount.kind": faultKinds(), "Config.token_source": {TokenSourceUsage},
	"Config.endpoint_scope": {ScopeLoopback, ScopePrivate, ScopePublic}, "Ledger.endpoint_scope": {ScopeLoopback, ScopePrivate, ScopePublic},
}

func faultKinds() []string {
	var out []string
	for _, k := range loadgen.FaultKinds() {
		out = append(out, string(k))
	}
	return out
}

func outcomeNames() []string {
	var out []string
	for _, o := range Outcomes() {
		out = append(out, string(o))
	}
	return out
}

// describer describes types as JSON Schema 2020-12. Arithmetic between members is package verify's.
type describer struct {
	comments map[string]string
	defs     map[string]any // of structs, by name
}

func (d *describer) schemaOf(t reflect.Type, signed bool, list []string) map[string]any {
	integer := func(kind any) map[string]any {
		low := 0
		if signed {
			low = -MaxInt
		}
		return map[string]any{"type": kind, "minimum": low, "maximum": MaxInt}
	}
	switch {
	case t == reflect.TypeFor[Opt]():
		return integer([]string{"integer", "null"})
	case t.Kind() == reflect.Int64:
		return integer("integer")
	case t.Kind() == reflect.Bool:
		return map[string]any{"type": "boolean"}
	case t.Kind() == reflect.String && list != nil:
		return map[string]any{"enum": list}
	case t.Kind() == reflect.String:
		return map[string]any{"type": "string"}
	case t.Kind() == reflect.Slice:
		return map[string]any{"type": "array", "items": d.schemaOf(t.Elem(), false, list)}
	case t.Kind() == reflect.Pointer:
		return map[string]any{"anyOf": []any{d.schemaOf(t.Elem(), false, nil), map[string]any{"type": "null"}}}
	}
	if d.defs[t.Name()] == nil {
		d.defs[t.Name()] = d.object(t)
	}
	return map[string]any{"$ref": "#/$defs/" + t.Name()}
}

func (d *describer) object(t reflect.Type) map[string]any {
	properties, required := map[string]any{}, []string{}
	for i := range t.NumField() {
		f := t.Field(i)
		name := f.Tag.Get("json")
		key := t.Name() + "." + name
		if f.Type.Kind() == reflect.Slice && f.Type.Elem().Kind() == reflect.String {
			key += "[]"
		}
		p := d.schemaOf(f.Type, f.Tag.Get("ledger") == "signed", closed[key])
		if c := d.comments[t.Name()+"."+f.Name]; c != "" {
			p["description"] = c
		}
		properties[name] = p
		required = append(required, name)
	}
	return map[string]any{"type": "object", "properties": properties, "required": required, "additionalProperties": false}
}

// fieldComments reads the comments of all members from this package's source: one description for both readers.
func fieldComments(t *testing.T) map[string]string {
	t.Helper()
	files, err := filepath.Glob("*.go")
	must(t, err)
	out := map[string]string{}
	for _, name := range files {
		file, err := goparser.ParseFile(token.NewFileSet(), name, nil, goparser.ParseComments)
		must(t, err)
		ast.Inspect(file, func(n ast.Node) bool {
			spec, ok := n.(*ast.TypeSpec)
			if !ok {
				return true
			}
			if s, ok := spec.Type.(*ast.StructType); ok {
				for _, f := range s.Fields.List {
					for _, id := range f.Names {
						out[spec.Name.Name+"."+id.Name] = strings.TrimSpace(f.Comment.Text())
					}
				}
			}
			return true
		})
	}
	if out["Row.SentUS"] == "" {
		t.Fatal("no comment was found")
	}
	return out
}

func schemaPath(name string) string {
	return filepath.Join("..", "..", "docs", "formats", name+".schema.json")
}

func TestSchemasAreUpToDate(t *testing.T) {
	comments := fieldComments(t)
	for _, s := range schemas {
		d := describer{comments, map[string]any{}}
		schema := d.object(reflect.TypeOf(s.doc))
		if len(d.defs) > 0 {
			schema["$defs"] = d.defs
		}
		schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
		schema["$id"] = "urn:cotenant:schema:" + s.name + ":1"
		schema["title"] = "cotenant soak, " + s.name
		var b bytes.Buffer
		enc := json.NewEncoder(&b)
		enc.SetEscapeHTML(false)
		enc.SetIndent("", "  ")
		must(t, enc.Encode(schema))
		if *update {
			must(t, os.WriteFile(schemaPath(s.name), b.Bytes(), 0o644))
		}
		have, err := os.ReadFile(schemaPath(s.name))
		must(t, err)
		if !bytes.Equal(have, b.Bytes()) {
			t.Errorf("%s isn't what the types give: go test ./internal/ledger -run Schemas -update", schemaPath(s.name))
		}
	}
}

func compileSchema(t *testing.T, name string) *jsonschema.Schema {
	t.Helper()
	f, err := os.Open(schemaPath(name))
	must(t, err)
	defer f.Close()
	doc, err := jsonschema.UnmarshalJSON(f)
	must(t, err)
	c := jsonschema.NewCompiler()
	must(t, c.AddResource("schema.json", doc))
	s, err := c.Compile("schema.json")
	must(t, err)
	return s
}

// TestSchemas holds the good run of package verify's tests against the schemas, and shows that they bite.
func TestSchemas(t *testing.T) {
	run := filepath.Join("..", "verify", "testdata", "good-100")
	public := filepath.Join(t.TempDir(), "public")
	_, err := Publish(run, public, PublishOptions{Sample: 4})
	must(t, err)
	f, err := OpenFolder(public)
	must(t, err)
	var sampled []byte
	for s, err := range f.SampledRows() {
		must(t, err)
		sampled, err = Append(sampled, &s)
		must(t, err)
		sampled = append(sampled, '\n')
	}
	for name, file := range map[string]string{"config": ConfigFile, "row": RowsFile, "resource": ResourcesFile, "event": EventsFile, "ledger": LedgerFile,
		"published": PublishedFile, "sampled_row": ""} {
		schema := compileSchema(t, name)
		b := sampled
		switch name {
		case "sampled_row":
		case "published":
			b, err = os.ReadFile(filepath.Join(public, file))
		default:
			b, err = os.ReadFile(filepath.Join(run, file))
		}
		must(t, err)
		docs := bytes.Split(bytes.TrimSpace(b), []byte("\n"))
		for i, doc := range docs {
			v, err := jsonschema.UnmarshalJSON(bytes.NewReader(doc))
			must(t, err)
			if err := schema.Validate(v); err != nil {
				t.Fatalf("%s, document %d: %v", file, i, err)
			}
		}
		v, err := jsonschema.UnmarshalJSON(bytes.NewReader(docs[0]))
		must(t, err)
		object := v.(map[string]any)
		for key, value := range object {
			delete(object, key)
			if schema.Validate(object) == nil {
				t.Errorf("%s: %s may be missing", name, key)
			}
			if object[key] = any(1.5); schema.Validate(object) == nil {
				t.Errorf("%s: %s may be a fraction", name, key)
			}
			object[key] = value
		}
		if object["audit"] = true; schema.Validate(object) == nil {
			t.Errorf("%s: another member may be there", name)
		}
	}
}
