// Package openai holds the wire forms of OpenAI's HTTP API: requests are decoded strictly (every error names the field at
// fault), answers, chunks and errors are rendered by hand, and streams of any server are read leniently.
//
// Decoding rules, the same for both APIs:
//   - A body is one JSON object (RFC 8259) in UTF-8, nested at most 512 levels deep. Lone surrogates (\ud83d) are refused, NUL is
//     legal text.
//   - null means absent. A field of the wrong type or out of range is an error; an integer may be written 8 or 8.0.
//   - A known field given twice is an error: two parsers of one request must not see different values.
//   - Unknown fields are accepted, since official clients gain fields with every release. A known field that would change the
//     answer and isn't supported is an error that names it, unless its value asks for nothing (see unsupported.go).
package openai
