import ollama

messages = [{"role": "user", "content": "hello"}]
print(ollama.chat(model="m", messages=messages).message.content)
print("".join(part.message.content or "" for part in ollama.chat(model="m", messages=messages, stream=True)))
print(ollama.generate(model="m", prompt="hello").response)
print([list(one) for one in ollama.embed(model="m", input="hello").embeddings])
print([model.model for model in ollama.list().models])
try:
    ollama.pull("m")
except ollama.ResponseError as refused:
    print(refused.status_code)
