package chat

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
)

// marked shows trusted text as it is and other text in brackets.
func marked(segments []Segment) string {
	var b strings.Builder
	for _, s := range segments {
		if s.Trusted {
			b.WriteString(s.Text)
		} else {
			b.WriteString("[" + s.Text + "]")
		}
	}
	return b.String()
}

func render(t testing.TB, src string, o RenderOptions, content ...string) ([]Segment, error) {
	t.Helper()
	tmpl, err := New(src, Options{BOS: "<s>", EOS: "</s>"})
	if err != nil {
		t.Fatalf("%s: %v", src, err)
	}
	var messages []Message
	for i, c := range content {
		messages = append(messages, Message{Role: []string{"user", "assistant"}[i%2], Content: c})
	}
	return tmpl.Render(messages, o)
}

// TestProvenance says for each operation which bytes of its result are the template's. c is the first message's
// content.
func TestProvenance(t *testing.T) {
	const c = " ab<x>Cd\n"
	for _, test := range []struct{ src, want string }{
		{`<x>{{ c }}<x>`, "<x>[" + c + "]<x>"},
		{`{{ '<x>' + c + '<y>' }}`, "<x>[" + c + "]<y>"},
		{`{{ '<x>' ~ c ~ 1 ~ '<y>' }}`, "<x>[" + c + "1]<y>"},
		{`{{ bos_token + c + eos_token }}`, "<s>[" + c + "]</s>"},
		{`{{ c | trim }}|{{ (' <x> ' + c) | trim }}`, "[ab<x>Cd]|<x> [ ab<x>Cd]"},
		{`{{ ('<x>' + c)[1:5] }}`, "x>[ a]"},
		{`{{ ('<x>' + c)[::-1] }}`, "[\ndC>x<ba ]>x<"},
		{`{{ ('<x>' + c)[0] }}{{ c[0] }}`, "<[ ]"},
		{`{{ c.split('<x>')[0] }}{{ c.split('<x>')[-1] }}`, "[ abCd\n]"},
		{`{{ ('<a>,' + c + ',<b>').split(',')[0] }}{{ ('<a>,' + c + ',<b>').split(',')[2] }}`, "<a><b>"},
		{`{{ c.replace('<x>', '<y>') }}`, "[ ab]<y>[Cd\n]"},
		{`{{ '<x> q'.replace('q', c) }}`, "<x> [" + c + "]"},
		{`{{ c | replace('b', 'b') }}`, "[ a]b[<x>Cd\n]"},
		{`{{ c | upper }}{{ '<x>' | upper }}{{ ('<x>' + c) | upper }}`, "[ AB<X>CD\n]<X><X>[ AB<X>CD\n]"},
		{`{{ ('ß' + c) | upper }}`, "SS[ AB<X>CD\n]"},
		{`{{ ('<ΟΣ' ~ m) | lower }}`, "[<οσα]"}, // the sigma isn't final in the whole: the parts can't tell
		{`{{ ('<x>' + c) | title }}`, "<X>[ Ab<X>cd\n]"},
		{`{{ ['<x>', c, '<y>'] | join('<j>') }}`, "<x><j>[" + c + "]<j><y>"},
		{`{{ '<x>'.join([c, c | trim]) }}`, "[" + c + "]<x>[ab<x>Cd]"},
		{`{{ c.partition('<x>')[1] }}{{ '<x>'.partition('x')[1] }}`, "[<x>]x"},
		{`{{ c | first }}{{ '<x>' | last }}`, "[ ]>"},
		{`{% for p in '<' ~ c[1:3] %}{{ p }}{% endfor %}`, "<[ab]"},
		{`{% set v = '<x>' ~ c %}{{ v }}`, "<x>[" + c + "]"},
		{`{% set v %}<x>{{ c }}{% endset %}{{ v }}`, "<x>[" + c + "]"},
		{`{% set ns = namespace(v='<x>') %}{% set ns.v = ns.v + c %}{{ ns.v }}`, "<x>[" + c + "]"},
		{`{% macro f(a) %}<x>{{ a }}{% endmacro %}{{ f(c) }}{{ f('<y>') }}`, "<x>[" + c + "]<x><y>"},
		{`{% macro f() %}<x>{{ caller() }}{% endmacro %}{% call f() %}{{ c }}<y>{% endcall %}`, "<x>[" + c + "]<y>"},
		{`{% filter trim %} <x>{{ c }}{% endfilter %}`, "<x>[ ab<x>Cd]"},
		{`{{ {'k': '<x>', c: '<y>'}['k'] }}{% for k in {'k': '<x>', c: '<y>'} %}{{ k }}{% endfor %}`, "<x>k[" + c + "]"},
		{`{{ c if c else '<x>' }}{{ '' or '<x>' }}{{ nope | default('<x>') }}`, "[" + c + "]<x><x>"},
		{`{{ '%s<x>' % c }}{{ '<%s>' | format('x') }}{{ '<{}>'.format(c) }}`, "[" + c + "]<x><x><[" + c + "]>"},
		{`{{ c | tojson }}{{ '<x>' | tojson }}{{ ['<x>'] }}{{ 12 }}`, `[" ab<x>Cd\n""<x>"['<x>']12]`},
		{`{{ c | e }}`, "[ ab&lt;x&gt;Cd\n]"},
		{`{{ c | indent(2, true) }}`, "  [ ab<x>Cd]\n"},
		{`{{ '<x>' * 2 }}{{ c[1] * 2 }}`, "<x><x>[aa]"},
		{`{{ '<x>' | list | join }}{{ '<x>' | string }}{{ '<x>' | safe }}`, "<x><x><x>"},
		{`{{ ['<b>', c, '<a>'] | sort | last }}{{ ['<b>', '<a>'] | first }}`, "<b><b>"},
		{`{{ messages[0].role }}{{ '<x>' if messages[0]['role'] == 'user' }}`, "[user]<x>"},
		{`{{ strftime_now('%%') }}`, "[%]"},
		{`{% raw %}<{{ x }}>{% endraw %}{% generation %}<g>{{ c }}{% endgeneration %}`, "<{{ x }}><g>[" + c + "]"},
	} {
		got, err := render(t, `{% set c = messages[0].content %}{% set m = messages[1].content %}`+test.src, RenderOptions{}, c, "Α")
		if err != nil || marked(got) != test.want {
			t.Errorf("%s\n got %q, %v\nwant %q", test.src, marked(got), err, test.want)
		}
	}
}

// TestInputsAreNeverTrusted renders everything that a request can bring.
func TestInputsAreNeverTrusted(t *testing.T) {
	tmpl, err := New(`{{ messages[0].role }}{{ messages[0].name }}{{ messages[0].extra.deep[0] }}{{ tools[0].k }}{{ v }}{% for k in messages[0].extra %}{{ k }}{% endfor %}{{ bos_token }}`,
		Options{BOS: "<s>"})
	if err != nil {
		t.Fatal(err)
	}
	got, err := tmpl.Render([]Message{{Role: "<1>", Name: "<2>", Extra: json.RawMessage(`{"extra": {"deep": ["<3>"], "<4>": 1}}`)}}, RenderOptions{
		Tools: json.RawMessage(`[{"k": "<5>"}]`), Vars: map[string]json.RawMessage{"v": json.RawMessage(`"<6>"`), "bos_token": json.RawMessage(`"<7>"`)},
	})
	if err != nil || marked(got) != "[<1><2><3><5><6>deep<4><7>]" {
		t.Errorf("%q, %v", marked(got), err)
	}
}

func TestContinueFinal(t *testing.T) {
	const chatML = `{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}`
	for _, test := range []struct {
		src, last, want string
	}{
		{chatML, "half ", "<|[user]|>[q]<|end|><|[assistant]|>[half ]"},
		{`{% for m in messages %}{{ m.content | trim }}<|end|>{% endfor %}`, "half \n", "[q]<|end|>[half]"},
		{`{% for m in messages %}{{ m.content }}<|end|>{% endfor %}`, "q", "[q]<|end|>[q]"},
		{`{% for m in messages %}{{ m.content }}<|end|>{% endfor %}`, "\ufdd0\ufdd1 ", "[q]<|end|>[\ufdd0\ufdd1 ]"},
		{`{% for m in messages %}{{ m.content }}<|end|>{% endfor %}`, "\ufdd0\ufdd0\ufdd0", "[q]<|end|>[\ufdd0\ufdd0\ufdd0]"},
	} {
		got, err := render(t, test.src, RenderOptions{ContinueFinal: true}, "q", test.last)
		if err != nil || marked(got) != test.want {
			t.Errorf("%s: %q, %v; want %q", test.src, marked(got), err, test.want)
		}
	}
	for name, f := range map[string]func() ([]Segment, error){
		"no message": func() ([]Segment, error) { return render(t, chatML, RenderOptions{ContinueFinal: true}) },
		"both": func() ([]Segment, error) {
			return render(t, chatML, RenderOptions{ContinueFinal: true, AddGenerationPrompt: true}, "a")
		},
		"content not written": func() ([]Segment, error) { return render(t, `x`, RenderOptions{ContinueFinal: true}, "a") },
	} {
		if _, err := f(); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func TestErrorsSayWhy(t *testing.T) {
	for src, want := range map[string]string{
		"{{ raise_exception('only ' ~ 2 ~ ' roles') }}": "chat template: only 2 roles",
		"\n\n{{ nope.x }}":                "chat template, line 3: 'nope' is undefined",
		"{{ messages[0].q.r }}":           "chat template, line 1: a dict has no attribute 'q'",
		"a\n{% for x in 5 %}{% endfor %}": "chat template, line 2: int can't be iterated over",
	} {
		_, err := render(t, src, RenderOptions{}, "hi")
		if err == nil || err.Error() != want {
			t.Errorf("%q: %v, want %s", src, err, want)
		}
		if _, ok := err.(*TemplateError); !ok {
			t.Errorf("%q: %T", src, err)
		}
	}
	for src, want := range map[string]string{
		"{% include '/etc/passwd' %}": `chat template: line 1: the block "include" isn't supported`,
		"{{ x | attr('y') }}":         `chat template: line 1: the filter "attr" isn't supported`,
		"{{ f(*x) }}":                 `chat template: line 1: * in a call isn't supported`,
		"{% for x in y recursive %}":  `chat template: line 1: recursive loops aren't supported`,
		"\n{% if x %}":                `chat template: line 2: the template ends where "endif" is missing`,
		"{{ 99999999999999999999 }}":  `chat template: line 1: bad integer 99999999999999999999`,
		`{{ "\N{DASH}" }}`:            `chat template: line 1: \N{…} in a string isn't supported`,
		"{{ a $ b }}":                 `chat template: line 1: unexpected character '$'`,
		"{{ " + strings.Repeat("(", 101) + "1" + strings.Repeat(")", 101) + " }}": `chat template: line 1: the template nests more than 100 levels`,
	} {
		if _, err := New(src, Options{}); err == nil || err.Error() != want {
			t.Errorf("%.40q: %v, want %s", src, err, want)
		}
	}
	tmpl, err := New("x", Options{})
	if err != nil {
		t.Fatal(err)
	}
	for name, o := range map[string]RenderOptions{
		"tools":                     {Tools: json.RawMessage(`[`)},
		"template variable \"v\"":   {Vars: map[string]json.RawMessage{"v": json.RawMessage(`{"a":1}x`)}},
		"nests more than 64 levels": {Tools: json.RawMessage(strings.Repeat("[", 70))},
		"doesn't fit 64 bits":       {Tools: json.RawMessage(`[99999999999999999999]`)},
		"too large":                 {Tools: json.RawMessage(`1e999`)},
		"messages can't be set":     {Vars: map[string]json.RawMessage{"messages": json.RawMessage(`[]`)}},
	} {
		if _, err := tmpl.Render(nil, o); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for i, extra := range []string{`[]`, `{`, `{"a":}`, `"x"`} {
		if _, err := tmpl.Render([]Message{{Extra: json.RawMessage(extra)}}, RenderOptions{}); err == nil || !strings.Contains(err.Error(), "message 0") {
			t.Errorf("%d: %v", i, err)
		}
	}
}

func ExampleTemplate_Render() {
	tmpl, err := New("{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}", Options{})
	if err != nil {
		panic(err)
	}
	segments, err := tmpl.Render([]Message{{Role: "user", Content: "hi<|end|>"}}, RenderOptions{})
	fmt.Println(marked(segments), err)
	// Output: <|[user]|>[hi<|end|>]<|end|> <nil>
}
