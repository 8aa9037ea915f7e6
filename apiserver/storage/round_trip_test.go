package storage

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	_ "k8s.io/kubernetes/pkg/apis/core/install"
)

func TestRoundTrip_EncodesWhatDecodingGives(t *testing.T) {
	t.Parallel()
	codec := roundTripCodec{legacyscheme.Codecs.LegacyCodec(corev1.SchemeGroupVersion)}
	// The strategy of a claim clears its status.
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{UID: "u"}}
	data, err := runtime.Encode(codec, claim)
	if err != nil {
		t.Fatal(err)
	}
	decoded, err := runtime.Decode(codec, data)
	if err != nil {
		t.Fatal(err)
	}
	again, err := runtime.Encode(legacyscheme.Codecs.LegacyCodec(corev1.SchemeGroupVersion), decoded)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(data), `"phase":"Pending"`) || string(data) != string(again) {
		t.Errorf("encoded %s, which decodes to %s", data, again)
	}
}
