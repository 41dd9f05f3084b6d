"""Sentences a calibration is made of besides what ships with Python: talk, and other languages.

One sentence a line. They are drawn at random, so none depends on the one before it.
"""

TALK = """
Can you move my dentist appointment to the week after next?
I checked the calendar: the only free slot is on Wednesday at half past nine.
Honestly, I never liked how that meeting ended.
What did you have in mind for her birthday?
Something small, maybe a picnic, if the forecast holds.
Sure, I can draft the letter, but I need to know who it goes to.
It goes to the landlord; keep it polite and mention the broken boiler twice.
Haha, that is exactly what my brother said!
Let me think about it and get back to you tonight.
The flight leaves at 6:45, so we should be on the road by four.
Why does the second query take longer than the first one?
Because the index is only used when both columns appear in the filter.
Okay, done. Anything else before I log off?
Please summarise the last three emails in two sentences each.
She told me the results would come in on Monday, not Friday.
I'm allergic to peanuts, so please leave those out of the recipe.
You're right, I mixed up the two invoices; the larger one is still open.
How long should I boil the eggs if I want them soft?
About six minutes, and put them straight into cold water afterwards.
My sister moved to a flat near the station last spring.
Could you translate this paragraph, keeping the tone informal?
The new keyboard feels great, but the space bar squeaks a little.
No worries, we can talk about the budget next time.
I would rather walk; parking there costs more than the ticket.
As an assistant I cannot open the file, but you can paste its contents here.
Here is a short list: flour, yeast, salt, olive oil and a bag of spinach.
That's odd. It worked yesterday on the other laptop.
Did you restart the service after changing the port?
Yes, twice, and I cleared the cache as well.
We met at a conference five years ago and have kept in touch since.
Remind me to call the plumber when I get home.
The kids want to see the dinosaurs again, for the fourth time.
In short, option B is cheaper in the first year and dearer afterwards.
I've been sleeping badly, probably because of the late coffee.
What was the name of that film with the lighthouse keeper?
Thanks a lot, you've saved me an hour of searching.
"""

LANGUAGES = (
    """
图书馆每天早上九点开门，晚上八点关门。
他昨天在车站丢了一把黑色的雨伞。
请把会议改到下周三下午三点。
这条河从北面的山里流下来，经过我们的村子。
她用了两年时间学会修理老式钟表。
如果明天下雨，我们就在家里做饺子。
医生建议他少喝咖啡，多走路。
这本书讲的是一个渔夫和他女儿的故事。
新的桥比旧的桥宽了六米，可以走公共汽车。
我不记得他的电话号码，只记得他住在邮局旁边。
老师让学生们把实验结果写在表格里。
去年冬天特别冷，湖面冻了整整一个月。
市场里的苹果比上个星期便宜了一半。
工程师发现问题出在第三个阀门上。
""",
    """
El tren de las siete llega casi siempre con diez minutos de retraso.
Mi abuela guardaba las cartas en una caja de madera debajo de la cama.
No encuentro las llaves; creo que las dejé en la cocina.
La panadería de la esquina cierra los lunes por la tarde.
Cuando terminó la tormenta, los niños salieron a buscar caracoles.
El ingeniero midió la presión tres veces antes de cerrar la válvula.
Necesitamos cuatro sillas más y una mesa larga para el sábado.
La profesora explicó por qué el hielo flota en el agua.
""",
    """
Der Bus zum Bahnhof fährt nur noch bis halb elf.
Im Keller stehen drei Fahrräder, von denen eines dem Nachbarn gehört.
Die Werkstatt rief an: Das Ersatzteil kommt frühestens am Donnerstag.
Sie hat den Vertrag gelesen und zwei Stellen mit Bleistift markiert.
Nach dem Regen roch der Wald nach Pilzen und nasser Erde.
Wer den Schlüssel zuletzt hatte, weiß heute niemand mehr.
Das Fenster im Flur lässt sich seit Wochen nicht richtig schließen.
Für den Kuchen braucht man sechs Eier, etwas Zimt und viel Geduld.
""",
    """
Le musée prête ses tableaux à une petite ville du nord.
Il a oublié son manteau dans le train de nuit.
Nous cherchons un appartement clair, pas trop loin du marché.
La réunion a duré deux heures sans que personne ne décide rien.
Au printemps, les canards reviennent sur l'étang derrière l'école.
Le médecin lui a conseillé de marcher chaque matin.
Ce fromage vient d'une vallée où il neige jusqu'en mai.
Elle parle trop vite quand elle est contente.
""",
    """
Поезд из Казани приходит рано утром на третий путь.
Бабушка положила варенье в шкаф и забыла о нём на год.
Инженер проверил насос и записал показания в журнал.
В нашем городе есть старый мост, по которому ездят только велосипеды.
Он обещал позвонить вечером, но телефон молчал.
Дети нашли на берегу бутылку с письмом.
Завтра обещают снег, поэтому лучше выехать пораньше.
Учительница попросила принести цветную бумагу и клей.
""",
)
