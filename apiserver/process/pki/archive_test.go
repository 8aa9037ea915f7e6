package pki_test

import (
	"strings"
	"testing"

	"filippo.io/age"

	"byre/apiserver/process/pki"
)

// age does not encrypt for a post-quantum key and another one together. That is found before the first backup.
func TestRecipients_RefusesKeysThatAgeDoesNotMix(t *testing.T) {
	t.Parallel()
	classic, err := age.GenerateX25519Identity()
	if err != nil {
		t.Fatal(err)
	}
	hybrid, err := age.GenerateHybridIdentity()
	if err != nil {
		t.Fatal(err)
	}
	one, other := classic.Recipient().String(), hybrid.Recipient().String()
	for _, keys := range [][]string{nil, {one}, {other}, {one, one}, {other, other}} {
		if to, err := pki.Recipients(keys); err != nil || len(to) != len(keys) {
			t.Errorf("%q: %d, %v", keys, len(to), err)
		}
	}
	if _, err := pki.Recipients([]string{one, other}); err == nil ||
		!strings.Contains(err.Error(), "--age-recipient: incompatible recipients: can't mix") {
		t.Errorf("both: %v", err)
	}
}
