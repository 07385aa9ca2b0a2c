// Package report draws the page of a run: one HTML file with charts as inline SVG, no script, and nothing that a browser would have to
// fetch. A page is made of a folder that verifies, or not at all. Every number on it is a value of a document that the page embeds,
// named by its place there; before a page is handed out it is read back and each number is compared.
package report

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/base64"
	"errors"
	"fmt"
	"html/template"
	"maps"
	"slices"
	"strings"

	"cotenant/internal/verify"
)

//go:embed page
var files embed.FS

// Marker stands near the beginning of every page; a file without it isn't ours to overwrite.
const Marker = `<meta name="generator" content="cotenant report"/>`

// MarkerWithin is how many bytes of a page contain the marker.
const MarkerWithin = 1024

// Errors of a folder that gets no page. Both wrap what failed.
var (
	ErrRefused    = errors.New("it fails verification: there is no page of it")
	ErrUnreadable = errors.New("there is no page of it")
)

// Page is a page with what it was made of.
type Page struct {
	HTML    []byte
	Kind    string   // "soak", "interfere", "compare"
	RunIDs  []string // of the runs on it
	Numbers int      // values that were compared with the documents
}

// Run makes the page of the run folder dir. version is that of the program. An error wraps ErrRefused where a rule fails, ErrUnreadable
// where dir can't be read as a run folder.
func Run(dir, version string) (*Page, error) {
	r, err := openRun(dir, "a")
	if err != nil {
		return nil, err
	}
	figures, err := soakFigures(r)
	if err != nil {
		return nil, err
	}
	docs := documents{"a": r.doc, "v": r.verdict}
	return render("soak", &view{docs: docs, figures: figures}, pageData{Title: "Soak of " + visible(r.ledger.Model), Version: version}, []string{r.ledger.RunID})
}

// pageData is what a template gets beside its functions.
type pageData struct {
	Title   string
	Version string
	Policy  string // of content security
	Style   template.CSS
	Docs    []embeddedDoc
	Body    any // what the page of a kind is laid out from
}

type embeddedDoc struct {
	ID   string
	JSON template.JS
}

// render fills the template of kind and reads the page back.
func render(kind string, v *view, data pageData, runIDs []string) (*Page, error) {
	sheet, err := files.ReadFile("page/style.css")
	if err != nil {
		return nil, err
	}
	style := slim(string(sheet)) // as the page will hold it: its hash has to be of those bytes
	sum := sha256.Sum256([]byte(style))
	data.Style = template.CSS(style)
	data.Policy = "default-src 'none'; style-src 'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'; img-src data:; base-uri 'none'; form-action 'none'"
	for _, id := range slices.Sorted(maps.Keys(v.docs)) {
		text, err := embedded(v.docs[id].data)
		if err != nil {
			return nil, err
		}
		data.Docs = append(data.Docs, embeddedDoc{id, template.JS(text)})
	}
	t, err := template.New(kind+".html").Funcs(v.funcs()).ParseFS(files, "page/parts.html", "page/"+kind+".html")
	if err != nil {
		return nil, fmt.Errorf("internal error: %w", err)
	}
	var b bytes.Buffer
	if err := t.Execute(&b, data); err != nil {
		return nil, fmt.Errorf("drawing the page: %w", err)
	}
	page := slim(b.String())
	n, err := check([]byte(page), v.docs)
	if err != nil {
		return nil, fmt.Errorf("internal error: the page differs from its ledger and isn't written: %w", err)
	}
	return &Page{HTML: []byte(page), Kind: kind, RunIDs: runIDs, Numbers: n}, nil
}

// slim drops the blank lines that a template's actions leave.
func slim(page string) string {
	lines := strings.Split(page, "\n")
	lines = slices.DeleteFunc(lines, func(l string) bool { return strings.TrimSpace(l) == "" })
	return strings.Join(lines, "\n") + "\n"
}

// refused says which rules failed.
func refused(r *verify.Report) error {
	failed := r.Failed()
	parts := make([]string, 0, len(failed))
	for _, f := range failed {
		parts = append(parts, f.Rule+" "+f.Title+": "+f.Detail)
	}
	return fmt.Errorf("%w: %s", ErrRefused, strings.Join(parts, "; "))
}
