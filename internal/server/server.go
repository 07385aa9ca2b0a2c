// Package server answers OpenAI's HTTP API over a Generator.
package server
