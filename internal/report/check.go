package report

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode/utf16"
)

// Attributes of an element that shows a value of a document: where it stands there, in which unit the text has it, and the value itself.
const (
	attrAt    = "data-at"
	attrUnit  = "data-u"
	attrValue = "data-v"
)

// absent are the words that a page has for null.
var absent = []string{"not exposed", "not established", "none", "no bound", "a failure", "not known", "–"}

// check reads a page back and holds every value on it against the documents: the one in its attribute must be the one that stands where
// it says, and its text must be what that value is written as. It returns how many it compared. The pages are well-formed XML, so
// what is read here is what a browser builds.
func check(page []byte, docs documents) (int, error) {
	dec := xml.NewDecoder(bytes.NewReader(page))
	dec.Strict = false
	dec.Entity = xml.HTMLEntity
	type shown struct {
		at, unit, value string
		text            strings.Builder
	}
	var open []*shown // one an open element, nil where it shows none
	n := 0
	for {
		token, err := dec.Token()
		if errors.Is(err, io.EOF) {
			if len(open) > 0 {
				return n, errors.New("reading the page back: it has open elements at its end")
			}
			return n, nil
		}
		if err != nil {
			return n, fmt.Errorf("reading the page back: %w", err)
		}
		switch token := token.(type) {
		case xml.StartElement:
			var s *shown
			if at := attribute(token, attrAt); at != "" {
				s = &shown{at: at, unit: attribute(token, attrUnit), value: attribute(token, attrValue)}
			}
			open = append(open, s)
		case xml.CharData:
			for _, s := range open {
				if s != nil {
					s.text.Write(token)
				}
			}
		case xml.EndElement:
			s := open[len(open)-1]
			open = open[:len(open)-1]
			if s == nil {
				continue
			}
			if err := compareValue(docs, s.at, s.unit, s.value, s.text.String()); err != nil {
				return n, err
			}
			n++
		}
	}
}

func attribute(e xml.StartElement, name string) string {
	for _, a := range e.Attr {
		if a.Name.Local == name {
			return a.Value
		}
	}
	return ""
}

// compareValue holds one shown value against its document.
func compareValue(docs documents, at, unit, value, text string) error {
	v, err := docs.get(at)
	if err != nil {
		return err
	}
	want, err := literal(v)
	if err != nil {
		return fmt.Errorf("%s: %w", at, err)
	}
	if value != want {
		return fmt.Errorf("the page says %s of %s, where the document has %s", value, at, want)
	}
	if v == nil {
		if !slices.Contains(absent, text) {
			return fmt.Errorf("the page shows %q for %s, where the document has null", text, at)
		}
		return nil
	}
	written, err := write(v, unit)
	if err != nil {
		return fmt.Errorf("%s: %w", at, err)
	}
	if text != written {
		return fmt.Errorf("the page shows %q for %s, which is written %q", text, at, written)
	}
	return nil
}

// embedded is a document as the page holds it inside a script element, without white space: no byte of it can end the element, and
// none reorders what a person reads there.
func embedded(data []byte) (string, error) {
	var compact, b bytes.Buffer
	if err := json.Compact(&compact, data); err != nil {
		return "", err
	}
	json.HTMLEscape(&b, compact.Bytes())
	if !strings.ContainsFunc(b.String(), odd) {
		return b.String(), nil
	}
	var out strings.Builder
	for _, r := range b.String() {
		if !odd(r) {
			out.WriteRune(r)
			continue
		}
		for _, unit := range utf16.Encode([]rune{r}) {
			fmt.Fprintf(&out, "\\u%04x", unit)
		}
	}
	return out.String(), nil
}
