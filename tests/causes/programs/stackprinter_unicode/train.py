import stackprinter
stackprinter.set_excepthook(style="darkbg2")

class DatensatzFehler(Exception):
    pass

def prüfe(form, soll):
    if form != soll:
        raise AssertionError("shape mismatch")

def lade(pfad):
    größe, soll = (224, 224), (256, 256)
    try:
        prüfe(größe, soll)
    except AssertionError as fehler:
        raise DatensatzFehler("Größe der Bilder stimmt nicht: 224×224 ≠ 256×256") from fehler

print("→ lade Datensatz …", flush=True)
lade("bilder/züge.tar")
