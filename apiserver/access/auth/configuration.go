package auth

import (
	"errors"
	"fmt"
	"os"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/apiserver/pkg/apis/apiserver/install"
)

// ReadConfiguration reads the file of --authentication-config. Decoding is strict: an
// unknown field is an error, because it may be a misspelt restriction.
func ReadConfiguration(path string) (*apiserver.AuthenticationConfiguration, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	if len(data) == 0 {
		return nil, errors.New("the file is empty")
	}
	scheme := runtime.NewScheme()
	install.Install(scheme)
	codecs := serializer.NewCodecFactory(scheme, serializer.EnableStrict)
	object, err := runtime.Decode(codecs.UniversalDecoder(), data)
	if err != nil {
		return nil, err
	}
	config, ok := object.(*apiserver.AuthenticationConfiguration)
	if !ok {
		return nil, fmt.Errorf("it holds %T, not an AuthenticationConfiguration", object)
	}
	return config, nil
}
