// Package jsontext encodes values as JSON.
package jsontext

import (
	"bytes"
	"encoding/json"
	"fmt"
)

// Compact returns v as JSON in one line, without a line break at the end. Unlike json.Marshal, it does not escape <, >
// and &. It panics if v cannot be encoded. So v must not have channels, functions, NaN, or methods that fail.
func Compact(v any) []byte {
	var b bytes.Buffer
	encoder := json.NewEncoder(&b)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(v); err != nil {
		panic(fmt.Sprintf("a value cannot be encoded as JSON: %v", err))
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n"))
}
