package ledger

import (
	"bytes"
	"encoding/json"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"

	"github.com/gowebpki/jcs"
)

// documents are all types that the format has.
func documents() []any {
	return []any{&Config{}, &Ledger{}, &Row{}, &Resource{}, &Event{}, &Attestation{}, &File{}}
}

// fill sets every member of v to something random that a document can hold.
func fill(r *rand.Rand, v reflect.Value, signed bool) {
	switch {
	case v.Type() == reflect.TypeFor[Opt]():
		if r.IntN(3) > 0 {
			fill(r, v.Field(0), signed)
			v.Field(1).SetBool(true)
		}
	case v.Kind() == reflect.Int64:
		n := r.Int64N(MaxInt+1) >> r.IntN(53)
		if signed && r.IntN(2) == 0 {
			n = -n
		}
		v.SetInt(n)
	case v.Kind() == reflect.String:
		alphabet := []rune("az09 \"\\/\b\f\n\r\t\x00\x1f\x7fé€\u2028\uFFFD😀<>&")
		s := make([]rune, r.IntN(12))
		for i := range s {
			s[i] = alphabet[r.IntN(len(alphabet))]
		}
		v.SetString(string(s))
	case v.Kind() == reflect.Bool:
		v.SetBool(r.IntN(2) == 0)
	case v.Kind() == reflect.Slice:
		n := r.IntN(4)
		v.Set(reflect.MakeSlice(v.Type(), n, n))
		for i := range n {
			fill(r, v.Index(i), false)
		}
	case v.Kind() == reflect.Pointer:
		if r.IntN(2) == 0 {
			v.Set(reflect.New(v.Type().Elem()))
			fill(r, v.Elem(), false)
		}
	case v.Kind() == reflect.Struct:
		for i := range v.NumField() {
			fill(r, v.Field(i), v.Type().Field(i).Tag.Get("ledger") == "signed")
		}
	}
}

// TestCanonical holds our writer against an independent implementation of RFC 8785, and our reader against our writer.
func TestCanonical(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 8785))
	for _, doc := range documents() {
		for range 200 {
			v := reflect.New(reflect.TypeOf(doc).Elem())
			fill(r, v.Elem(), false)
			ours, err := Marshal(v.Interface())
			if err != nil {
				t.Fatal(err)
			}
			plain, err := json.Marshal(v.Interface())
			if err != nil {
				t.Fatal(err)
			}
			theirs, err := jcs.Transform(plain)
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(ours, theirs) {
				t.Fatalf("%T:\nours   %s\ntheirs %s", doc, ours, theirs)
			}
			back := reflect.New(v.Type().Elem())
			if _, err := UnmarshalCanonical(ours, back.Interface(), nil); err != nil {
				t.Fatalf("%T: %v in %s", doc, err, ours)
			}
			if !reflect.DeepEqual(v.Interface(), back.Interface()) {
				t.Fatalf("%T: read back %+v, want %+v", doc, back, v)
			}
			// encoding/json's form, with its order of members and its escapes, reads as the same.
			again := reflect.New(v.Type().Elem())
			if err := Unmarshal(plain, again.Interface()); err != nil {
				t.Fatalf("%T: %v in %s", doc, err, plain)
			}
			if !reflect.DeepEqual(v.Interface(), again.Interface()) {
				t.Fatalf("%T: read %+v, want %+v", doc, again, v)
			}
		}
	}
}

func TestUnmarshalRefuses(t *testing.T) {
	type inner struct {
		N int64 `json:"n"`
	}
	type outer struct {
		A int64   `json:"a"`
		B string  `json:"b"`
		C Opt     `json:"c"`
		D []inner `json:"d"`
		E *inner  `json:"e"`
		F bool    `json:"f"`
		G int64   `json:"g" ledger:"signed"`
	}
	const good = `{"a":1,"b":"x","c":null,"d":[{"n":2}],"e":null,"f":true,"g":-3}`
	var v outer
	if _, err := UnmarshalCanonical([]byte(good), &v, nil); err != nil {
		t.Fatal(err)
	}
	for name, bad := range map[string]string{
		"unknown member":      `{"a":1,"b":"x","c":null,"d":[],"e":null,"f":true,"g":0,"h":1}`,
		"member twice":        `{"a":1,"a":1,"b":"x","c":null,"d":[],"e":null,"f":true,"g":0}`,
		"missing member":      `{"a":1,"b":"x","c":null,"d":[],"e":null,"f":true}`,
		"other case":          `{"A":1,"b":"x","c":null,"d":[],"e":null,"f":true,"g":0}`,
		"null integer":        `{"a":null,"b":"x","c":null,"d":[],"e":null,"f":true,"g":0}`,
		"null array":          `{"a":1,"b":"x","c":null,"d":null,"e":null,"f":true,"g":0}`,
		"null string":         `{"a":1,"b":null,"c":null,"d":[],"e":null,"f":true,"g":0}`,
		"fraction":            `{"a":1.0,"b":"x","c":null,"d":[],"e":null,"f":true,"g":0}`,
		"exponent":            `{"a":1e0,"b":"x","c":null,"d":[],"e":null,"f":true,"g":0}`,
		"leading zero":        `{"a":01,"b":"x","c":null,"d":[],"e":null,"f":true,"g":0}`,
		"minus zero":          `{"a":1,"b":"x","c":null,"d":[],"e":null,"f":true,"g":-0}`,
		"negative":            `{"a":-1,"b":"x","c":null,"d":[],"e":null,"f":true,"g":0}`,
		"plus":                `{"a":+1,"b":"x","c":null,"d":[],"e":null,"f":true,"g":0}`,
		"2^53":                `{"a":9007199254740992,"b":"x","c":null,"d":[],"e":null,"f":true,"g":0}`,
		"huge":                `{"a":99999999999999999999999,"b":"x","c":null,"d":[],"e":null,"f":true,"g":0}`,
		"string for integer":  `{"a":"1","b":"x","c":null,"d":[],"e":null,"f":true,"g":0}`,
		"invalid UTF-8":       "{\"a\":1,\"b\":\"\xff\",\"c\":null,\"d\":[],\"e\":null,\"f\":true,\"g\":0}",
		"lone surrogate":      `{"a":1,"b":"\ud800","c":null,"d":[],"e":null,"f":true,"g":0}`,
		"low surrogate":       `{"a":1,"b":"\udc00\ud800","c":null,"d":[],"e":null,"f":true,"g":0}`,
		"control character":   "{\"a\":1,\"b\":\"\n\",\"c\":null,\"d\":[],\"e\":null,\"f\":true,\"g\":0}",
		"unknown escape":      `{"a":1,"b":"\x41","c":null,"d":[],"e":null,"f":true,"g":0}`,
		"open string":         `{"a":1,"b":"x`,
		"open object":         `{"a":1`,
		"trailing comma":      `{"a":1,"b":"x","c":null,"d":[],"e":null,"f":true,"g":0,}`,
		"trailing data":       good + `x`,
		"two values":          good + good,
		"array for object":    `[]`,
		"empty":               ``,
		"unknown member deep": `{"a":1,"b":"x","c":null,"d":[{"n":2,"m":3}],"e":null,"f":true,"g":0}`,
		"number for bool":     `{"a":1,"b":"x","c":null,"d":[],"e":null,"f":1,"g":0}`,
	} {
		if err := Unmarshal([]byte(bad), &outer{}); err == nil {
			t.Errorf("%s was read: %s", name, bad)
		}
	}
	for name, loose := range map[string]string{
		"white space":    strings.Replace(good, ":1", ": 1", 1),
		"order":          `{"b":"x","a":1,"c":null,"d":[{"n":2}],"e":null,"f":true,"g":-3}`,
		"needless u0078": strings.Replace(good, `"x"`, `"\u0078"`, 1),
		"escaped slash":  strings.Replace(good, `"x"`, `"\/"`, 1),
	} {
		if err := Unmarshal([]byte(loose), &outer{}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := UnmarshalCanonical([]byte(loose), &outer{}, nil); err == nil {
			t.Errorf("%s passed as canonical: %s", name, loose)
		}
	}
}

func TestMarshalRefuses(t *testing.T) {
	for name, v := range map[string]any{
		"beyond 2^53":   Event{TUS: MaxInt + 1},
		"negative":      Event{TUS: -1},
		"invalid UTF-8": Event{Detail: "\xff"},
		"negative Opt":  Event{Value: Some(-1)},
	} {
		if b, err := Marshal(v); err == nil {
			t.Errorf("%s was written: %s", name, b)
		}
	}
}
