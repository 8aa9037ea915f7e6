package query

import (
	"bytes"
	"encoding/json"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"

	"byre/apiserver/storage/transcode"
)

// RawJSON is a value that is JSON itself. It shares the memory of the object.
type RawJSON []byte

// The functions below make a value of JSON, which is valid: a string, an int64, a float64, a bool, or
// RawJSON. They return nil for JSON of another type.

func catalogText(data []byte) any {
	if len(data) < 2 || data[0] != '"' {
		return nil
	}
	if bytes.IndexByte(data, '\\') < 0 {
		return string(data[1 : len(data)-1])
	}
	var s string
	if json.Unmarshal(data, &s) != nil {
		return nil
	}
	return s
}

// scalarText is text for a string or a number.
func scalarText(data []byte) any {
	if len(data) > 0 && (data[0] == '-' || data[0] >= '0' && data[0] <= '9') {
		return string(data)
	}
	return catalogText(data)
}

// timestamp returns a time in UTC: a fraction has six digits, as in a MicroTime, so that texts with one are in the order of the times.
func timestamp(data []byte) any {
	s, ok := catalogText(data).(string)
	if !ok {
		return nil
	}
	t, err := time.Parse(time.RFC3339Nano, s)
	if err != nil {
		return nil
	}
	if strings.ContainsAny(s, ".,") {
		return t.UTC().Format("2006-01-02T15:04:05.000000Z07:00")
	}
	return t.UTC().Format(time.RFC3339)
}

func integer(data []byte) any {
	n, err := strconv.ParseInt(string(data), 10, 64)
	if err != nil {
		return nil
	}
	return n
}

func number(data []byte) any {
	if len(data) == 0 || data[0] == '"' {
		return nil
	}
	f, err := strconv.ParseFloat(string(data), 64)
	if err != nil {
		return nil
	}
	return f
}

func boolean(data []byte) any {
	switch string(data) {
	case "true":
		return true
	case "false":
		return false
	}
	return nil
}

// MaxQuantity is more than the length of a quantity in bytes, and than the exponent of one that a float64 has.
const MaxQuantity = 400

// quantity returns a quantity in its base unit, cores or bytes: the float64 that is nearest to it.
func quantity(data []byte) any {
	s, ok := scalarText(data).(string)
	if !ok || len(s) > MaxQuantity || !strings.ContainsAny(s, "0123456789") { // the parser takes "Ki" for 0
		return nil
	}
	// The parser would compute all digits of 1e-2147483648.
	at := strings.LastIndexAny(s, "eE")
	if exponent, err := strconv.Atoi(s[at+1:]); at >= 0 && err == nil && max(exponent, -exponent) > MaxQuantity {
		return nil
	}
	q, err := resource.ParseQuantity(s)
	if err != nil {
		return nil
	}
	f, err := strconv.ParseFloat(q.AsDec().String(), 64)
	if err != nil {
		return nil
	}
	return f
}

func document(data []byte) any { return RawJSON(data) }

// controller returns what makes the value of a member of the controller among owner references.
func controller(member string) func([]byte) any {
	return func(references []byte) any {
		for reference := range transcode.Elements(references) {
			var found []byte
			controls := false
			for key, value := range transcode.Members(reference) {
				switch key {
				case member:
					found = value
				case "controller":
					controls = string(value) == "true"
				}
			}
			if controls {
				return catalogText(found)
			}
		}
		return nil
	}
}
