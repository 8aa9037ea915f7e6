package handlers_test

import (
	"testing"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/features"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	featuregatetesting "k8s.io/component-base/featuregate/testing"

	"byre/apiserver/handlers"
)

// A client that may send CBOR sends it to every group, those of definitions and APIServices too.
func TestNewCodecs_HaveCBORWithItsFeature(t *testing.T) {
	for _, isOn := range []bool{true, false} {
		featuregatetesting.SetFeatureGateDuringTest(t, utilfeature.DefaultFeatureGate, features.CBORServingAndStorage, isOn)
		codecs := handlers.NewCodecs(handlers.NewScheme(func(*runtime.Scheme) {}))
		if _, has := runtime.SerializerInfoForMediaType(codecs.SupportedMediaTypes(), runtime.ContentTypeCBOR); has != isOn {
			t.Errorf("with the feature %v there is CBOR: %v", isOn, has)
		}
	}
}
