// Validates the objects on standard input with the classes of @kubernetes-models: one line for each, "ok" or what is wrong.
import { pathToFileURL } from "node:url";

const CLASSES = {
    HTTPRoute: "gateway-api/gateway.networking.k8s.io/v1",
    ScaledObject: "keda/keda.sh/v1alpha1",
    ServiceMonitor: "prometheus-operator/monitoring.coreos.com/v1",
};

let text = "";
for await (const piece of process.stdin) text += piece;
for (const found of JSON.parse(text)) {
    const path = `${process.argv[2]}/node_modules/@kubernetes-models/${CLASSES[found.kind]}/${found.kind}.js`;
    const { [found.kind]: Kind } = await import(pathToFileURL(path));
    try {
        new Kind(found).validate();
        console.log(found.apiVersion === Kind.apiVersion ? "ok" : `apiVersion must be ${Kind.apiVersion}`);
    } catch (error) {
        console.log(error.message.replaceAll("\n", " "));
    }
}
