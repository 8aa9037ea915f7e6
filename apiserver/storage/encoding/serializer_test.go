package encoding

import (
	"encoding/json"
	"testing"
)

func TestEncryption_WrapsValuesAsJSON(t *testing.T) {
	t.Parallel()
	for _, encrypted := range []string{
		"k8s:enc:aescbc:v1:key1:\x00\xff\"", "k8s:enc:kms:v2:plugin:\x01", "k8s:enc:odd\n:v1:k:x", "k8s:enc:", "anything",
		"\xff",
	} {
		stored := WrapEncrypted([]byte(encrypted))
		back, err := UnwrapEncrypted(stored)
		if !json.Valid(stored) || err != nil || string(back) != encrypted {
			t.Errorf("%q is kept as %s and read as %q (%v)", encrypted, stored, back, err)
		}
	}
	for _, stored := range []string{`"text"`, `"byre:raw:?"`, `"unfinished`} {
		if _, err := UnwrapEncrypted([]byte(stored)); err == nil {
			t.Errorf("%s was read", stored)
		}
	}
}
