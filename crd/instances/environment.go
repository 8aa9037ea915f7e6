package instances

import (
	"k8s.io/apiextensions-apiserver/pkg/apiserver/conversion"
	"k8s.io/apimachinery/pkg/runtime"

	"byre/apiserver/handlers"
	"byre/apiserver/storage"
)

// Environment is what the instances of all definitions are served with. It is immutable.
type Environment struct {
	// Scheme has the options and the Status that are sent with custom resources.
	Scheme  *runtime.Scheme
	Storage storage.Backend
	Serving handlers.Serving
	// Converters makes the converters of definitions.
	Converters *conversion.CRConverterFactory
	// Sources reads definitions with their schemas.
	Sources SourceReader

	// conversions has what webhooks have converted.
	conversions *conversions
}

// NewEnvironment completes an environment.
func NewEnvironment(e Environment) *Environment {
	e.conversions = newConversions(maxConversions)
	return &e
}

// Drain ends what runs in the background: conversions that are made again before they
// expire.
func (e *Environment) Drain() { e.conversions.drain() }
