package oracle

import (
	"fmt"
	"net/http"
	"strings"
)

const definitionsPath = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"

// definitionText is a definition of things whose spec has a schema. Further lines
// are set at their path: "names.kind" is that of the definition's spec.
func definitionText(group, schema string) string {
	return fmt.Sprintf(`
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: things.%[1]s}
spec:
  group: %[1]s
  scope: Namespaced
  names: {plural: things, singular: thing, kind: Thing, listKind: ThingList}
  versions:
  - name: v1
    served: true
    storage: true
    schema:
      openAPIV3Schema:
        type: object
        properties:
          spec: %[2]s
`, group, schema)
}

// badDefinitions are definitions that are refused, and some that are unexpectedly accepted.
// They are dry runs: none is stored.
func badDefinitions() []request {
	var requests []request
	post := func(name, body string) {
		requests = append(requests, request{
			name: "define: " + name, method: http.MethodPost, path: definitionsPath + "?dryRun=All&fieldValidation=Strict",
			contentType: "application/yaml", body: body,
		})
	}
	for _, schema := range badSchemas() {
		post(schema[0], definitionText("bad.example.com", schema[1]))
	}
	for _, change := range badChanges() {
		good := definitionText("bad.example.com",
			"{type: object, properties: {a: {type: string}, list: {type: array, items: {type: string}}}}")
		bad := strings.Replace(good, change[1], change[2], 1)
		if bad == good {
			panic(change[0] + " changes nothing")
		}
		post(change[0], bad)
	}
	return requests
}

// badSchemas are schemas, each after the name of its fault.
func badSchemas() [][2]string {
	nested := strings.Repeat("{type: object, properties: {a: ", 60) + "{type: string}" + strings.Repeat("}}", 60)
	lists := func(depth int, rule string) string {
		return strings.Repeat("{type: array, items: ", depth) +
			"{type: object, properties: {a: {type: string}}, x-kubernetes-validations: [{rule: " + rule + "}]}" +
			strings.Repeat("}", depth)
	}
	many := make([]string, 40)
	for i := range many {
		many[i] = fmt.Sprintf(`{rule: "self.l.all(x, self.l.all(y, x != y || %d == %d))"}`, i, i)
	}
	return [][2]string{
		{"no type", `{}`},
		{"no such type", `{type: widget}`},
		{"array without items", `{type: array}`},
		{"items as a list", `{type: array, items: [{type: string}]}`},
		{"properties and additionalProperties",
			`{type: object, properties: {a: {type: string}}, additionalProperties: {type: string}}`},
		{"additionalProperties: false", `{type: object, additionalProperties: false}`},
		{"additionalProperties: true", `{type: object, additionalProperties: true}`},
		{"reference", `{$ref: "#/definitions/a"}`},
		{"reference to itself", `{type: object, properties: {a: {$ref: "#"}}}`},
		{"unique items", `{type: array, uniqueItems: true, items: {type: string}}`},
		{"definitions", `{type: object, definitions: {a: {type: string}}}`},
		{"dependencies", `{type: object, dependencies: {a: [b]}}`},
		{"pattern properties", `{type: object, patternProperties: {a: {type: string}}}`},
		{"id", `{type: object, id: widget}`},
		{"type within anyOf", `{anyOf: [{type: string}, {type: integer}]}`},
		{"field only in allOf", `{type: object, allOf: [{properties: {a: {minLength: 1}}}]}`},
		{"description within not", `{type: string, not: {description: widget}}`},
		{"preserve: false", `{type: object, x-kubernetes-preserve-unknown-fields: false}`},
		{"preserve on a string", `{type: string, x-kubernetes-preserve-unknown-fields: true}`},
		{"int-or-string with a type", `{type: string, x-kubernetes-int-or-string: true}`},
		{"embedded without fields", `{type: object, x-kubernetes-embedded-resource: true}`},
		{"embedded string", `{type: string, x-kubernetes-embedded-resource: true}`},
		{"map without keys",
			`{type: array, x-kubernetes-list-type: map, items: {type: object, properties: {a: {type: string}}}}`},
		{"map of strings",
			`{type: array, x-kubernetes-list-type: map, x-kubernetes-list-map-keys: [a], items: {type: string}}`},
		{"map with a key that is no field",
			`{type: array, x-kubernetes-list-type: map, x-kubernetes-list-map-keys: [b], items: {type: object, properties: {a: {type: string}}}}`},
		{"map with a key that may be absent",
			`{type: array, x-kubernetes-list-type: map, x-kubernetes-list-map-keys: [a], items: {type: object, properties: {a: {type: string}}}}`},
		{"map with an object as its key",
			`{type: array, x-kubernetes-list-type: map, x-kubernetes-list-map-keys: [a], items: {type: object, required: [a], properties: {a: {type: object}}}}`},
		{"map with a key twice",
			`{type: array, x-kubernetes-list-type: map, x-kubernetes-list-map-keys: [a, a], items: {type: object, required: [a], properties: {a: {type: string}}}}`},
		{"set of objects", `{type: array, x-kubernetes-list-type: set, items: {type: object}}`},
		{"set with keys",
			`{type: array, x-kubernetes-list-type: set, x-kubernetes-list-map-keys: [a], items: {type: string}}`},
		{"nullable items of a set", `{type: array, x-kubernetes-list-type: set, items: {type: string, nullable: true}}`},
		{"no such list type", `{type: array, x-kubernetes-list-type: widget, items: {type: string}}`},
		{"list type of an object", `{type: object, x-kubernetes-list-type: atomic}`},
		{"no such map type", `{type: object, x-kubernetes-map-type: widget}`},
		{"map type of a list", `{type: array, x-kubernetes-map-type: atomic, items: {type: string}}`},
		{"default of another type", `{type: object, properties: {a: {type: string, default: 1}}}`},
		{"default that is not in the enum", `{type: object, properties: {a: {type: string, enum: [x], default: y}}}`},
		{"default with an unknown field", `{type: object, default: {b: 1}, properties: {a: {type: string}}}`},
		{"default of null", `{type: object, properties: {a: {type: string, default: null}}}`},
		{"default within anyOf", `{type: object, properties: {a: {type: string}}, anyOf: [{properties: {a: {default: x}}}]}`},
		{"default that breaks a rule",
			`{type: object, properties: {a: {type: integer, default: 1, x-kubernetes-validations: [{rule: "self > 1"}]}}}`},
		{"default of metadata",
			`{type: object, x-kubernetes-embedded-resource: true, x-kubernetes-preserve-unknown-fields: true, default: {apiVersion: v1, kind: Pod, metadata: {name: 1}}}`},
		{"pattern that is not closed", `{type: string, pattern: "((a"}`},
		{"pattern that looks ahead", `{type: string, pattern: "^(?!a)"}`},
		{"pattern that refers back", `{type: string, pattern: "^(a)\\1$"}`},
		{"pattern that repeats too often", `{type: string, pattern: "^a{1001}$"}`},
		{"no such format", `{type: string, format: widget}`},
		{"format of another type", `{type: integer, format: date-time}`},
		{"enum twice", `{type: string, enum: [a, a]}`},
		{"enum of another type", `{type: string, enum: [1]}`},
		{"negative length", `{type: string, maxLength: -1}`},
		{"multiple of nothing", `{type: integer, multipleOf: 0}`},
		{"least above most", `{type: integer, minimum: 3, maximum: 2}`},
		{"required twice", `{type: object, required: [a, a], properties: {a: {type: string}}}`},
		{"deeply nested", nested},
		{"rule of no language", `{type: object, x-kubernetes-validations: [{rule: "self.("}]}`},
		{"rule about no field", `{type: object, x-kubernetes-validations: [{rule: "self.b == 1"}]}`},
		{"rule of a wrong type",
			`{type: object, properties: {a: {type: string}}, x-kubernetes-validations: [{rule: "self.a == 1"}]}`},
		{"rule that is no condition",
			`{type: object, properties: {a: {type: string}}, x-kubernetes-validations: [{rule: "self.a"}]}`},
		{"empty rule", `{type: object, x-kubernetes-validations: [{rule: ""}]}`},
		{"rule twice", `{type: object, x-kubernetes-validations: [{rule: "true"}, {rule: "true"}]}`},
		{"rule of several lines", `{type: object, x-kubernetes-validations: [{rule: "true ||\n false"}]}`},
		{"message of several lines", `{type: object, x-kubernetes-validations: [{rule: "true", message: "a\nb"}]}`},
		{"message of spaces", `{type: object, x-kubernetes-validations: [{rule: "true", message: " "}]}`},
		{"expression of no message", `{type: object, x-kubernetes-validations: [{rule: "true", messageExpression: "1"}]}`},
		{"expression of no language",
			`{type: object, x-kubernetes-validations: [{rule: "true", messageExpression: "self.("}]}`},
		{"no such reason", `{type: object, x-kubernetes-validations: [{rule: "true", reason: Widget}]}`},
		{"path to nowhere",
			`{type: object, properties: {a: {type: string}}, x-kubernetes-validations: [{rule: "true", fieldPath: ".b"}]}`},
		{"path of no form",
			`{type: object, properties: {a: {type: string}}, x-kubernetes-validations: [{rule: "true", fieldPath: "a["}]}`},
		{"path into a list",
			`{type: object, properties: {a: {type: array, items: {type: string}}}, x-kubernetes-validations: [{rule: "true", fieldPath: ".a[0]"}]}`},
		{"old self of a list's item",
			`{type: array, items: {type: string, x-kubernetes-validations: [{rule: "self == oldSelf"}]}}`},
		{"optional old self without it", `{type: object, x-kubernetes-validations: [{rule: "true", optionalOldSelf: true}]}`},
		{"old self that is not optional", `{type: string, x-kubernetes-validations: [{rule: "oldSelf.hasValue()"}]}`},
		{"rule with a bad pattern", `{type: string, x-kubernetes-validations: [{rule: "self.matches('((')"}]}`},
		{"rule with an unknown function", `{type: string, x-kubernetes-validations: [{rule: "hello(self)"}]}`},
		{"rule with a variable", `{type: string, x-kubernetes-validations: [{rule: "request.user == self"}]}`},
		{"rule that costs too much", lists(4, `"self.a.contains('b')"`)},
		{"rule that costs too much by itself",
			`{type: object, properties: {l: {type: array, items: {type: string}}}, x-kubernetes-validations: [{rule: "self.l.all(x, self.l.all(y, self.l.all(z, x + y != z)))"}]}`},
		{"rules that cost too much together",
			`{type: object, properties: {l: {type: array, maxItems: 1000, items: {type: string, maxLength: 10}}}, x-kubernetes-validations: [` + strings.Join(many, ",") + `]}`},
		{"rule that is cheap by its bounds",
			`{type: array, maxItems: 10, items: {type: array, maxItems: 10, items: {type: string, maxLength: 10, x-kubernetes-validations: [{rule: "self.contains('b')"}]}}}`},
		{"rule under what is preserved",
			`{type: object, x-kubernetes-preserve-unknown-fields: true, x-kubernetes-validations: [{rule: "self.a == 1"}]}`},
		{"rule within anyOf", `{type: string, anyOf: [{x-kubernetes-validations: [{rule: "true"}]}]}`},
	}
}

// badChanges are changes to a good definition, by name.
func badChanges() [][3]string {
	return [][3]string{
		{"name of another", "name: things.bad.example.com", "name: things.example.com"},
		{"plural in capitals", "plural: things", "plural: Things"},
		{"singular in capitals", "singular: thing", "singular: Thing"},
		{"kind of two words", "kind: Thing", "kind: The Thing"},
		{"kind that is the list's", "listKind: ThingList", "listKind: Thing"},
		{"short name in capitals", "listKind: ThingList", "shortNames: [TH]"},
		{"category in capitals", "listKind: ThingList", "categories: [All]"},
		{"no kind", "kind: Thing,", ""},
		{"no names", "names: {plural: things, singular: thing, kind: Thing, listKind: ThingList}", "names: {}"},
		{"no such scope", "scope: Namespaced", "scope: Widget"},
		{"no scope", "scope: Namespaced", ""},
		{"no group", "group: bad.example.com", ""},
		{"a group without a dot", "group: bad.example.com", "group: example"},
		{"a group in capitals", "group: bad.example.com", "group: Bad.example.com"},
		{"a version in capitals", "name: v1\n", "name: V1\n"},
		{"a version of dots", "name: v1\n", "name: v1.2\n"},
		{"nothing served", "served: true", "served: false"},
		{"nothing stored", "storage: true", "storage: false"},
		{"all stored", "  - name: v1\n",
			"  - {name: v2, served: true, storage: true, schema: {openAPIV3Schema: {type: object}}}\n  - name: v1\n"},
		{"a version twice", "  - name: v1\n",
			"  - {name: v1, served: true, storage: false, schema: {openAPIV3Schema: {type: object}}}\n  - name: v1\n"},
		{"a version without a schema", "  - name: v1\n", "  - {name: v2, served: true, storage: false}\n  - name: v1\n"},
		{"a version without an object", "  - name: v1\n",
			"  - {name: v2, served: true, storage: false, schema: {openAPIV3Schema: {type: string}}}\n  - name: v1\n"},
		{"metadata with fields", "          spec:",
			"          metadata: {type: object, properties: {labels: {type: object}}}\n          spec:"},
		{"metadata with a name's pattern", "          spec:",
			"          metadata: {type: object, properties: {name: {type: string, pattern: '^a'}}}\n          spec:"},
		{"metadata as a string", "          spec:", "          metadata: {type: string}\n          spec:"},
		{"unknown fields preserved", "scope: Namespaced", "scope: Namespaced\n  preserveUnknownFields: true"},
		{"an unknown field", "scope: Namespaced", "scope: Namespaced\n  widget: true"},
		{"no such conversion", "scope: Namespaced", "scope: Namespaced\n  conversion: {strategy: Widget}"},
		{"conversion by no webhook", "scope: Namespaced", "scope: Namespaced\n  conversion: {strategy: Webhook}"},
		{"no conversion by a webhook", "scope: Namespaced",
			"scope: Namespaced\n  conversion: {strategy: None, webhook: {conversionReviewVersions: [v1], clientConfig: {url: 'https://a/b'}}}"},
		{"conversion in the open", "scope: Namespaced",
			"scope: Namespaced\n  conversion: {strategy: Webhook, webhook: {conversionReviewVersions: [v1], clientConfig: {url: 'http://a/b'}}}"},
		{"conversion by user and password", "scope: Namespaced",
			"scope: Namespaced\n  conversion: {strategy: Webhook, webhook: {conversionReviewVersions: [v1], clientConfig: {url: 'https://a:b@c/d?e#f'}}}"},
		{"conversion by nobody", "scope: Namespaced",
			"scope: Namespaced\n  conversion: {strategy: Webhook, webhook: {conversionReviewVersions: [v1], clientConfig: {}}}"},
		{"conversion by two", "scope: Namespaced",
			"scope: Namespaced\n  conversion: {strategy: Webhook, webhook: {conversionReviewVersions: [v1], clientConfig: {url: 'https://a/b', service: {name: a, namespace: b}}}}"},
		{"conversion by a service without a name", "scope: Namespaced",
			"scope: Namespaced\n  conversion: {strategy: Webhook, webhook: {conversionReviewVersions: [v1], clientConfig: {service: {namespace: b, port: 0, path: 'a b'}}}}"},
		{"conversion in no language", "scope: Namespaced",
			"scope: Namespaced\n  conversion: {strategy: Webhook, webhook: {conversionReviewVersions: [widget], clientConfig: {url: 'https://a/b'}}}"},
		{"conversion in no version", "scope: Namespaced",
			"scope: Namespaced\n  conversion: {strategy: Webhook, webhook: {conversionReviewVersions: [], clientConfig: {url: 'https://a/b'}}}"},
		{"conversion by a bad CA", "scope: Namespaced",
			"scope: Namespaced\n  conversion: {strategy: Webhook, webhook: {conversionReviewVersions: [v1], clientConfig: {url: 'https://a/b', caBundle: Y293}}}"},
		{"scale without paths", "served: true", "served: true\n    subresources: {scale: {}}"},
		{"scale of nowhere", "served: true",
			"served: true\n    subresources: {scale: {specReplicasPath: spec.replicas, statusReplicasPath: .spec.replicas, labelSelectorPath: .metadata.labels}}"},
		{"a column without a path", "served: true", "served: true\n    additionalPrinterColumns: [{name: A, type: string}]"},
		{"a column of a bad path", "served: true",
			"served: true\n    additionalPrinterColumns: [{name: A, type: string, jsonPath: '{.a'}]"},
		{"a column of no type", "served: true",
			"served: true\n    additionalPrinterColumns: [{name: A, type: widget, format: widget, jsonPath: .spec.a}]"},
		{"a field that can't be selected", "served: true", "served: true\n    selectableFields: [{jsonPath: .spec}]"},
		{"a field that is not there", "served: true", "served: true\n    selectableFields: [{jsonPath: .spec.b}]"},
		{"a field in a list", "served: true", "served: true\n    selectableFields: [{jsonPath: '.spec.list[0]'}]"},
		{"a field selected twice", "served: true",
			"served: true\n    selectableFields: [{jsonPath: .spec.a}, {jsonPath: .spec.a}]"},
		{"a field of the metadata", "served: true", "served: true\n    selectableFields: [{jsonPath: .metadata.name}]"},
		{"too many fields", "served: true",
			"served: true\n    selectableFields: [" + strings.TrimSuffix(strings.Repeat("{jsonPath: .spec.a},", 9), ",") + "]"},
		{"a warning that is not for anything", "served: true", "served: true\n    deprecationWarning: widget"},
		{"a warning of two lines", "served: true", "served: true\n    deprecated: true\n    deprecationWarning: \"a\\nb\""},
		{"a warning that is long", "served: true",
			"served: true\n    deprecated: true\n    deprecationWarning: " + strings.Repeat("widget", 100)},
		{"no versions", "  versions:\n", "  versions: []\n  x:\n"},
	}
}
